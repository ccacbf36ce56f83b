"""Translate a file of `accelerate config` and accelerate's environment variables into our launch keys.

These functions import torch, so they run once per run in a separate process. It prints the variables that `accelerate
launch --config_file FILE` would set for its processes.

Without `launch.accelerate_config`, accelerate's variables are not applied. Variables that contradict `launch` are
refused by name; variables that only change the run cause a warning.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from rlhf_cli.config.accelerate_file import default_accelerate_file, read_accelerate_file
from rlhf_cli.config.origins import Origins
from rlhf_cli.config.schema.launch_sections import Launch
from rlhf_cli.errors import ConfigError, UserError
from rlhf_cli.plan.devices import num_gpus
from rlhf_cli.tables.strategies import STRATEGIES

_TIMEOUT_S = 120
_OURS = (
    *("PYTHONPATH", "MASTER_ADDR", "MASTER_PORT", "RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE"),
    *("LOCAL_WORLD_SIZE", "TORCHELASTIC_USE_AGENT_STORE"),
)
"""Variables that the launch plan sets itself."""


def accelerate_environment(file: Path, *, where: str) -> dict[str, str]:
    """Return the variables that accelerate sets for `file`, without those that place a rank.

    Raise ConfigError with accelerate's own message if accelerate rejects the file.
    """
    python_path = os.pathsep.join(entry for entry in sys.path if entry)
    done = subprocess.run(
        [sys.executable, "-m", __name__, str(file)],
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
        env={**os.environ, "PYTHONPATH": python_path},
    )
    if done.returncode != 0:
        said = done.stderr.strip().splitlines()
        raise ConfigError(
            f"accelerate refuses {file}",
            where=where,
            got=said[-1] if said else f"exit code {done.returncode}",
            hint="accelerate config --config_file FILE",
        )
    variables: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return variables


def set_by_accelerate(file: str) -> dict[str, str]:
    """Return the variables that accelerate's launcher would add to, or change in, the environment of its processes.

    Follows `accelerate.commands.launch.launch_command` (accelerate 1.15) up to the point where it starts processes.
    """
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser
    from accelerate.utils.launch import (
        prepare_deepspeed_cmd_env,
        prepare_multi_gpu_env,
        prepare_simple_launcher_cmd_env,
    )

    args: argparse.Namespace = launch_command_parser().parse_args(["--config_file", file, "-m", "rlhf_cli"])
    args, defaults, has_precision = _validate_launch_command(args)
    args.main_process_port = 0  # we choose the port: accelerate would check that its own is free
    if args.use_deepspeed and not args.cpu:
        fields = [*defaults.deepspeed_config, *(["mixed_precision"] if has_precision else [])]
        args.deepspeed_fields_from_accelerate_config = ",".join(fields)
        _, environment = prepare_deepspeed_cmd_env(args)
    elif (args.use_fsdp or args.multi_gpu) and not args.cpu:
        environment = prepare_multi_gpu_env(args)
    else:
        args.main_process_ip = args.main_process_ip or "127.0.0.1"
        _, environment = prepare_simple_launcher_cmd_env(args)
    return {
        name: value
        for name, value in sorted(environment.items())
        if os.environ.get(name) != value and name not in _OURS
    }


_PRECISION = {"no": "float32", "bf16": "bf16", "fp16": "fp16", "fp8": "fp8"}
_TRUE = {"1", "true", "yes", "y", "on", "t"}
_MEANS = {
    "ACCELERATE_USE_FSDP": "FSDP",
    "ACCELERATE_USE_DEEPSPEED": "DeepSpeed",
    "ACCELERATE_USE_MEGATRON_LM": "Megatron-LM",
    "ACCELERATE_USE_PARALLELISM_CONFIG": "a parallelism_config",
}


def contradicting_variables(launch: Launch, origins: Origins) -> Iterator[UserError]:
    """Yield an error for every accelerate variable in the environment that contradicts `launch`."""
    zero_stage, environment = STRATEGIES[launch.strategy].zero_stage, os.environ
    found: list[tuple[str, str, str]] = []  # variable, its meaning, the key of `launch`
    fits = {"ACCELERATE_USE_FSDP": launch.strategy == "fsdp2", "ACCELERATE_USE_DEEPSPEED": zero_stage is not None}
    found += [(name, means, "strategy") for name, means in _MEANS.items() if _is_on(name) and not fits.get(name, False)]
    if launch.accelerate_config is None:
        if launch.strategy == "fsdp2" and (version := environment.get("FSDP_VERSION", "2")) != "2":
            found.append(("FSDP_VERSION", f"FSDP {version}", "strategy"))
        stage = environment.get("ACCELERATE_DEEPSPEED_ZERO_STAGE", str(zero_stage))
        if zero_stage is not None and stage != str(zero_stage):
            found.append(("ACCELERATE_DEEPSPEED_ZERO_STAGE", f"ZeRO-{stage}", "strategy"))
        precision = environment.get("ACCELERATE_MIXED_PRECISION", "no")
        meant = _PRECISION.get(precision.lower(), precision)
        # TRL's arguments bf16 and fp16 override this variable, but no argument says "neither".
        fits_auto = launch.precision == "auto" and meant == "bf16" and launch.device != "cpu" and num_gpus() > 0
        if meant not in (launch.precision, "float32") and not fits_auto:
            found.append(("ACCELERATE_MIXED_PRECISION", meant, "precision"))
    if _is_on("ACCELERATE_USE_CPU") and launch.device == "cuda":
        found.append(("ACCELERATE_USE_CPU", "the CPU", "device"))
    for name, means, field in found:
        key = f"launch.{field}"
        yield ConfigError(
            f"{name} in the environment and {key} contradict each other",
            where=origins.where(key),
            got=f"{name}={environment[name]} means {means}, and {key}={getattr(launch, field)}",
            expected="one of them; what `launch` says needs no variables",
            hint=f"unset {name}",
        )


def variable_warnings(launch: Launch) -> list[str]:
    """Return a line for each variable that changes the run, and one for a default file that is ignored but differs."""
    lines = []
    backend = os.environ.get("ACCELERATE_DYNAMO_BACKEND", "no")
    if backend.lower() != "no" and launch.accelerate_config is None:
        lines.append(f"ACCELERATE_DYNAMO_BACKEND={backend} in the environment compiles the model")
    if (device := os.environ.get("ACCELERATE_TORCH_DEVICE")) is not None:
        lines.append(f"ACCELERATE_TORCH_DEVICE={device} in the environment says which device is used")
    file = default_accelerate_file()
    if file is not None and launch.accelerate_config is None and (other := _differing_keys(file, launch)):
        lines.append(f"{file} is not read, and asks for {other}; launch.accelerate_config={file} honours it")
    return lines


def _differing_keys(file: Path, launch: Launch) -> str:
    """Return where accelerate's default file differs from `launch`, or '' if no key differs."""
    try:
        settings = read_accelerate_file(file)
    except ConfigError as error:
        return f"something else ({error.what.removeprefix(f'{file} ')})"
    asked = launch.model_dump()
    names = ("strategy", "precision", "processes", "nodes", "offload")
    values = {name: value for name in names if (value := getattr(settings, name)) is not None}
    return ", ".join(f"{name} {value}" for name, value in values.items() if asked[name] not in (value, "auto"))


def _is_on(name: str) -> bool:
    return os.environ.get(name, "").lower() in _TRUE


if __name__ == "__main__":
    print(json.dumps(set_by_accelerate(sys.argv[1])))
