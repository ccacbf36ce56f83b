"""Use a file of `accelerate config`: its values fill unset keys of `launch`, and its variables reach the ranks.

accelerate itself computes these variables. That imports torch, so it happens in a separate process.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import yaml

from rlhf_cli.config.origins import Origin, Origins
from rlhf_cli.errors import ConfigError, UserError
from rlhf_cli.text.json_values import JsonTree, JsonValue, section
from rlhf_cli.text.regular_files import SAFE_LOADER, read_object, read_regular

KEY = "launch.accelerate_config"
_PRECISIONS = {"no": "float32", False: "float32", "bf16": "bf16", "fp16": "fp16", None: None}
"""`mixed_precision` -> launch.precision; YAML reads an unquoted no as false."""
_TYPES = ("NO", "MULTI_GPU", "MULTI_CPU", "FSDP", "DEEPSPEED")
_OFFLOADED = ("optimizer", "param")
_TIMEOUT_S = 120
_OURS = (
    *("PYTHONPATH", "MASTER_ADDR", "MASTER_PORT", "RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE"),
    *("LOCAL_WORLD_SIZE", "TORCHELASTIC_USE_AGENT_STORE"),
)
"""Variables that the launch plan sets itself."""


def fill_from_accelerate_file(launch: JsonTree, origins: Origins, *, generates: bool) -> Iterator[UserError]:
    """Fill unset and `auto` keys of `launch` from its file. Yield an error if it is unusable or contradicts a key."""
    path = Path(str(launch["accelerate_config"])).expanduser()
    try:
        of_file = _keys_of_launch(path, origins.where(KEY), generates=generates)
    except ConfigError as error:
        yield error
        return
    for key, value in of_file.items():
        name, known = f"launch.{key}", launch.get(key, "auto")
        if value is None:
            continue
        if known in ("auto", None):
            launch[key] = value
            origins.by_key[name] = Origin(path)
        elif known != value:
            typed, said = (json.dumps(one).strip('"') for one in (known, value))
            what, got = f"{name} and {path} contradict each other", f"{name}={typed}, and the file says {said}"
            yield origins.error(name, what, got, f"{name}={said}, or launch.accelerate_config=null")


def _keys_of_launch(path: Path, where: str, *, generates: bool) -> dict[str, JsonValue]:
    """Return what a file sets in `launch` (None: unset). Raise ConfigError for a setting that a run cannot use."""
    tree = _read(path, where)
    kind, fsdp, parallel = tree["distributed_type"], section(tree, "fsdp_config"), section(tree, "parallelism_config")
    stage, offloads = _zero(section(tree, "deepspeed_config"), where) if kind == "DEEPSPEED" else (None, False)
    allowed: list[tuple[str, object, tuple[object, ...]]] = [
        ("distributed_type", kind, _TYPES),
        ("compute_environment", tree.get("compute_environment", "LOCAL_MACHINE"), ("LOCAL_MACHINE",)),
        ("machine_rank", tree.get("machine_rank") or 0, (0,)),
        ("mixed_precision", tree.get("mixed_precision"), tuple(_PRECISIONS)),
        ("zero_stage", stage, (1, 2, 3, None)),
    ]
    processes, nodes = max(0, _number(tree, "num_processes") or 0), _number(tree, "num_machines") or 1
    if processes and kind != "NO":  # every machine starts as many
        allowed.append(("num_processes", processes, (max(nodes, processes // nodes * nodes),)))
    if kind == "FSDP":  # FSDP 1 is gone from transformers 5, and a sharded state dict does not save the model
        allowed.append(("fsdp_version", fsdp.get("fsdp_version", 1), (2,)))
        allowed.append(("fsdp_state_dict_type", fsdp.get("fsdp_state_dict_type"), ("FULL_STATE_DICT",)))
    if generates:  # such a trainer makes its batches after generation, where accelerate cannot divide them
        names = [f"parallelism_config_{name}_size" for name in ("cp", "sp")]
        allowed += [(name, parallel.get(name, 1), (1,)) for name in names]
    for name, value, good in allowed:
        if value not in good:
            able = " or ".join(str(choice) for choice in good if choice is not None)
            what = f"this run cannot do what {path} requests"
            advice = "launch.strategy=ddp|fsdp2|zero1|zero2|zero3 without the file"
            raise ConfigError(what, where=where, got=f"{name}: {value}", expected=f"{name}: {able}", advice=advice)
    on_cpu = tree.get("use_cpu") is True or kind == "MULTI_CPU"
    return {
        "strategy": "fsdp2" if kind == "FSDP" else f"zero{stage}" if stage else "ddp",
        "precision": _PRECISIONS[tree.get("mixed_precision")],  # type: ignore[index]
        # accelerate ignores num_processes for the type NO and starts one process
        "processes": 1 if kind == "NO" else processes // nodes if processes else None,
        "nodes": nodes,
        "device": "cpu" if on_cpu else "cuda" if kind != "NO" else None,
        "offload": offloads or (kind == "FSDP" and fsdp.get("fsdp_offload_params") is True),
    }


def _read(path: Path, where: str) -> JsonTree:
    try:
        tree = yaml.load(read_regular(path), Loader=SAFE_LOADER)  # JSON is YAML
    except (OSError, yaml.YAMLError, ValueError) as error:
        got = f"{path}: {error.strerror if isinstance(error, OSError) else error}"
        raise ConfigError("the accelerate file cannot be read", where=where, got=got) from None
    if not isinstance(tree, dict) or "distributed_type" not in tree:
        what = f"`accelerate config` did not write {path}"
        expected, got = "a file with distributed_type, num_processes, mixed_precision", "no distributed_type"
        raise ConfigError(what, where=where, got=got, expected=expected, hint="accelerate config --config_file FILE")
    return tree


def _zero(deepspeed: JsonTree, where: str) -> tuple[JsonValue, bool]:
    """Return the ZeRO stage of a file for DeepSpeed, and whether it offloads; DeepSpeed's own file may say both."""
    stage, devices = deepspeed.get("zero_stage", 2), [deepspeed.get(f"offload_{what}_device") for what in _OFFLOADED]
    if isinstance(own := deepspeed.get("deepspeed_config_file"), str):
        try:
            zero = section(read_object(Path(own).expanduser()), "zero_optimization")
        except (OSError, ValueError) as error:
            raise ConfigError("DeepSpeed's own file cannot be read", where=where, got=f"{own}: {error}") from None
        stage, devices = zero.get("stage", 0), [section(zero, f"offload_{what}").get("device") for what in _OFFLOADED]
    return stage, not {*devices} <= {"none", None}


def _number(tree: JsonTree, name: str) -> int | None:
    value = tree.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def accelerate_environment(file: Path, *, where: str) -> dict[str, str]:
    """Return accelerate's variables for `file`, without those that place a rank. Raise ConfigError if it rejects it."""
    python_path = os.pathsep.join(entry for entry in sys.path if entry)
    command, environment = [sys.executable, "-m", __name__, str(file)], {**os.environ, "PYTHONPATH": python_path}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, env=environment)
    except subprocess.TimeoutExpired:
        what, advice = "accelerate does not answer", "try again: it imports torch, which takes long on a busy machine"
        raise ConfigError(what, where=where, got=f"nothing for {_TIMEOUT_S} s", advice=advice) from None
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        hint = "accelerate config --config_file FILE"
        raise ConfigError(f"accelerate refuses {file}", where=where, got=lines[-1], hint=hint)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def set_by_accelerate(file: str) -> dict[str, str]:
    """Return the variables that accelerate 1.15 (`launch_command`) adds to or changes in its processes' environment."""
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser
    from accelerate.utils import launch

    args: argparse.Namespace = launch_command_parser().parse_args(["--config_file", file, "-m", "rlhf_cli"])
    args, defaults, has_precision = _validate_launch_command(args)
    args.main_process_port = 0  # we choose the port: accelerate would check that its own is free
    if args.use_deepspeed and not args.cpu:
        fields = [*defaults.deepspeed_config, *(["mixed_precision"] if has_precision else [])]
        args.deepspeed_fields_from_accelerate_config = ",".join(fields)
        _, environment = launch.prepare_deepspeed_cmd_env(args)
    elif (args.use_fsdp or args.multi_gpu) and not args.cpu:
        environment = launch.prepare_multi_gpu_env(args)
    else:
        args.main_process_ip = args.main_process_ip or "127.0.0.1"
        _, environment = launch.prepare_simple_launcher_cmd_env(args)
    changed = {name: value for name, value in sorted(environment.items()) if os.environ.get(name) != value}
    return {name: value for name, value in changed.items() if name not in _OURS}


if __name__ == "__main__":
    print(json.dumps(set_by_accelerate(sys.argv[1])))
