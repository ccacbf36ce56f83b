"""Read an `accelerate config` file as far as it has counterparts in `launch`, without importing accelerate.

accelerate itself translates the rest of the file for the ranks (plan/accelerate.py). Values read here fill the keys of
`launch` that are unset, and must not contradict those that are set.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

from rlhf_cli.config.origins import Origin, Origins
from rlhf_cli.errors import ConfigError, Prose, UserError
from rlhf_cli.tables.trl_trainers import TRAINERS
from rlhf_cli.text.json_values import JsonTree, JsonValue, section
from rlhf_cli.text.yaml_loader import SAFE_LOADER

KEY = "launch.accelerate_config"
_PRECISIONS = {"no": "float32", False: "float32", "bf16": "bf16", "fp16": "fp16", None: None}
"""`mixed_precision` -> launch.precision; YAML reads an unquoted no as false."""


@dataclass(frozen=True)
class AccelerateFile:
    """The values of a file under the names of `launch`; None if the file does not set them.

    `processes` counts those of one machine. `lengthwise` is the number of processes that share a sequence: context
    times sequence parallelism. `gpu_ids` are the visible GPUs, None for all.
    """

    path: Path
    strategy: str
    precision: str | None
    processes: int | None
    nodes: int
    rdzv: str | None
    device: str | None
    offload: bool
    gpu_ids: tuple[str, ...] | None
    lengthwise: int


_SHARED = ("strategy", "precision", "processes", "nodes", "rdzv", "device", "offload")
"""The names that are keys of `launch`, too."""


def default_accelerate_file() -> Path | None:
    """Return the file that `accelerate launch` reads by default, or None if it does not exist."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser()
    folder = Path(os.environ.get("HF_HOME", cache / "huggingface")).expanduser() / "accelerate"
    names = ("default_config.yaml", "default_config.json")
    return next((folder / name for name in names if (folder / name).is_file()), None)


def read_accelerate_file(path: Path, *, where: str = KEY) -> AccelerateFile:
    """Read an `accelerate config` file, YAML or JSON. Raise ConfigError if it cannot be read or asks for something that
    `launch` has no key for: devices other than GPUs and CPUs, FSDP 1, fp8, an unknown distributed_type.
    """
    tree = _tree(path, where)
    refused = _refusal(tree, path)
    if refused is not None:
        what, got, expected, hint = refused
        hint = hint if hint.startswith("accelerate ") else Prose(hint)
        raise ConfigError(f"{path} {what}", where=where, got=got, expected=expected, hint=hint)
    kind = str(tree.get("distributed_type", "NO"))
    strategy, offload = "ddp", False
    if kind == "FSDP":
        strategy, offload = "fsdp2", section(tree, "fsdp_config").get("fsdp_offload_params") is True
    elif kind == "DEEPSPEED":
        strategy, offload = _zero(section(tree, "deepspeed_config"), path, where)
    processes, nodes = _number(tree, "num_processes"), _number(tree, "num_machines") or 1
    if kind == "NO":
        processes = 1  # accelerate starts one process, for any num_processes
    ip, port, ids = tree.get("main_process_ip"), tree.get("main_process_port"), tree.get("gpu_ids")
    parallel = section(tree, "parallelism_config")
    sizes = [_number(parallel, f"parallelism_config_{name}") or 1 for name in ("cp_size", "sp_size")]
    return AccelerateFile(
        path=path,
        strategy=strategy,
        precision=_PRECISIONS[tree.get("mixed_precision")],  # type: ignore[index]
        processes=None if processes is None or processes < 1 else max(1, processes // nodes),
        nodes=nodes,
        rdzv=f"{ip}:{port}" if nodes > 1 and ip and port else None,
        device="cpu" if tree.get("use_cpu") is True or kind == "MULTI_CPU" else "cuda" if kind != "NO" else None,
        offload=offload,
        gpu_ids=None if ids in (None, "all", "") else tuple(part.strip() for part in str(ids).split(",")),
        lengthwise=sizes[0] * sizes[1],
    )


def fill_from_accelerate_file(tree: JsonTree, origins: Origins) -> Iterator[UserError]:
    """Fill the keys of `launch` that are unset or `auto` with the values of the file in `launch.accelerate_config`.

    Yield a problem for each key that is set to another value, and for sequence parallelism with a TRL trainer that does
    not support it. Without such a file, do nothing.
    """
    launch = tree.get("launch")
    if not isinstance(launch, dict) or not isinstance(launch.get("accelerate_config"), str):
        return
    path = Path(str(launch["accelerate_config"])).expanduser()
    try:
        file = read_accelerate_file(path, where=origins.where(KEY))
    except ConfigError as error:
        yield error
        return
    for key in _SHARED:
        value, name, known = getattr(file, key), f"launch.{key}", launch.get(key, "auto")
        if value is None:
            continue
        if known in ("auto", None):
            launch[key] = value
            origins.by_key[name] = Origin(path)
        elif known != value:
            yield ConfigError(
                f"{name} and {path} contradict each other",
                where=origins.where(name),
                got=f"{name}={_word(known)}, and the file says {_word(value)}",
                expected="one of them",
                hint=f"{name}={_word(value)}, or launch.accelerate_config=null",
            )
    trl = section(tree, "trainer").get("trl")
    if file.lengthwise > 1 and isinstance(trl, str) and trl in TRAINERS and TRAINERS[trl].generates:
        yield ConfigError(
            f"{trl} of TRL does not divide sequences among processes",
            where=origins.where(KEY),
            got=f"cp_size x sp_size = {file.lengthwise} under parallelism_config in {path}",
            expected="1: the trainer makes its batches after generation, where accelerate cannot divide them",
            hint=Prose(f"parallelism_config_cp_size: 1 and parallelism_config_sp_size: 1 in {path}"),
        )


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _tree(path: Path, where: str) -> JsonTree:
    written = "accelerate config --config_file FILE"
    try:
        tree = yaml.load(path.read_text(encoding="utf-8"), Loader=SAFE_LOADER)  # JSON is YAML
    except OSError as error:
        what, got = "the accelerate file cannot be read", f"{path}: {error.strerror}"
        raise ConfigError(what, where=where, got=got, expected="a file of `accelerate config`", hint=written) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is no YAML", where=where, got=str(error)) from None
    if not isinstance(tree, dict) or "distributed_type" not in tree:
        raise ConfigError(
            f"{path} is no file of `accelerate config`",
            where=where,
            got="no distributed_type in it",
            expected="one with distributed_type, num_processes, mixed_precision",
            hint=written,
        )
    return tree


def _refusal(tree: JsonTree, path: Path) -> tuple[str, str, str, str] | None:
    """Return (what is wrong, got, expected, advice) for a file that `launch` has no keys for, else None."""
    kind, fsdp = tree.get("distributed_type", "NO"), section(tree, "fsdp_config")
    if kind is False:
        expected = "distributed_type: 'NO', as `accelerate config` writes it"
        what = "says NO without quotes, which is YAML's word for false"
        return what, "distributed_type: false", expected, f"put quotes around NO in {path}"
    if _number(tree, "machine_rank"):
        address = f"{tree.get('main_process_ip') or 'HOST'}:{tree.get('main_process_port') or 'PORT'}"
        got, expected = f"machine_rank: {tree['machine_rank']}", "machine_rank: 0 here; the other machines join it"
        return "is for another machine than the first", got, expected, f"rlhf join {address} on that machine"
    is_remote = tree.get("compute_environment", "LOCAL_MACHINE") != "LOCAL_MACHINE" or tree.get("tpu_use_cluster")
    if is_remote or kind not in ("NO", "MULTI_GPU", "MULTI_CPU", "FSDP", "DEEPSPEED"):
        name = "compute_environment" if is_remote else "distributed_type"
        expected = "distributed_type NO, MULTI_GPU, MULTI_CPU, FSDP or DEEPSPEED on machines of your own"
        hint = "launch.strategy=ddp|fsdp2|zero1|zero2|zero3 without the file"
        return "wants what rlhf does not start", f"{name}: {tree.get(name)}", expected, hint
    if kind == "FSDP" and fsdp.get("fsdp_version", 1) != 2:
        got = f"fsdp_version: {fsdp['fsdp_version']}" if "fsdp_version" in fsdp else "no fsdp_version, which means 1"
        hint = f"accelerate to-fsdp2 --config_file {path} --overwrite"
        return "is for FSDP 1, which transformers 5 gives up", got, "fsdp_version: 2 under fsdp_config", hint
    saved = str(fsdp.get("fsdp_state_dict_type", "SHARDED_STATE_DICT"))
    if kind == "FSDP" and saved != "FULL_STATE_DICT":
        expected = "FULL_STATE_DICT, with which transformers' save_model writes the whole model"
        hint = f"fsdp_state_dict_type: FULL_STATE_DICT under fsdp_config in {path}"
        return "would not save the trained model", f"fsdp_state_dict_type: {saved}", expected, hint
    if tree.get("mixed_precision") not in _PRECISIONS:
        got, what = f"mixed_precision: {tree['mixed_precision']}", "wants a precision that TRL's arguments do not have"
        return what, got, "no, bf16 or fp16", f"mixed_precision: bf16 in {path}"
    return None


def _zero(deepspeed: JsonTree, path: Path, where: str) -> tuple[str, bool]:
    """Return (launch.strategy, launch.offload) of a file for DeepSpeed."""
    own = deepspeed.get("deepspeed_config_file")
    if isinstance(own, str):
        try:
            tree = yaml.load(Path(own).expanduser().read_text(encoding="utf-8"), Loader=SAFE_LOADER)
        except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
            raise ConfigError("DeepSpeed's own file cannot be read", where=where, got=f"{own}: {error}") from None
        zero = section(tree if isinstance(tree, dict) else {}, "zero_optimization")
        stage: JsonValue = zero.get("stage", 0)
        offloads = [section(zero, f"offload_{what}").get("device", "none") for what in ("optimizer", "param")]
    else:
        stage = deepspeed.get("zero_stage", 2)  # accelerate's default
        offloads = [deepspeed.get(f"offload_{what}_device", "none") for what in ("optimizer", "param")]
    if stage not in (1, 2, 3):
        raise ConfigError(
            f"{path} has a ZeRO stage that no strategy of ours stands for",
            where=where,
            got=f"zero_stage: {stage}",
            expected="1, 2 or 3",
            hint=Prose("launch.strategy=ddp without the file"),
        )
    return f"zero{stage}", any(offload not in ("none", None) for offload in offloads)


def _number(tree: JsonTree, name: str) -> int | None:
    value = tree.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
