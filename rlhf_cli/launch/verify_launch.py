"""Check in the worker that the launch came out as asked, and record what only the worker can see.

accelerate and transformers fall back silently: FSDP 2 on a CPU becomes plain DDP, one process with several GPUs becomes
DataParallel, and an environment variable can change the precision.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

from rlhf_cli.config.schema.run_sections import Launch
from rlhf_cli.errors import ConfigError, UserError
from rlhf_cli.runs.provenance import code_hash, weights_hash
from rlhf_cli.tables.strategies import STRATEGIES

if TYPE_CHECKING:
    from rlhf_cli.trainers.extensions import ExtendedTrainer
    from rlhf_cli.trainers.trl_protocol import TrlTrainer


def refuse_other_world_size(launch: Launch) -> None:
    """Raise ConfigError for another number of processes: accelerate and torchrun fall back to one silently."""
    seen = int(os.environ.get("WORLD_SIZE", "1"))
    if launch.processes != "auto" and launch.processes * launch.nodes != seen:
        raise _other("processes", str(launch.processes * launch.nodes), f"WORLD_SIZE={seen}", "launch.processes=1")


def refuse_unless_as_asked(launch: Launch, trainer: TrlTrainer) -> None:
    """Raise ConfigError for the first setting of a built trainer that differs from `launch`."""
    accelerator, row = trainer.accelerator, STRATEGIES[launch.strategy]
    device = str(accelerator.device).partition(":")[0]
    kind, is_fsdp = str(accelerator.distributed_type.value), launch.strategy == "fsdp2"
    version = getattr(getattr(accelerator.state, "fsdp_plugin", None), "fsdp_version", None)
    stage = getattr(getattr(accelerator.state, "deepspeed_plugin", None), "zero_stage", None)
    if kind not in row.distributed_types or row.zero_stage not in (None, stage) or (is_fsdp and version != 2):
        seen = {"FSDP": f"FSDP {version}", "DEEPSPEED": f"ZeRO-{stage}"}.get(kind, kind)
        why = "; on a CPU accelerate silently runs it in place of FSDP" if is_fsdp and device == "cpu" else ""
        raise _other("strategy", launch.strategy, f"{seen} on {device}{why}", "launch.strategy=ddp")
    asked = None if launch.processes == "auto" else launch.processes * launch.nodes
    if asked not in (None, accelerator.num_processes):
        raise _other("processes", str(asked), str(accelerator.num_processes), "rlhf resume RUN  # starts all of them")
    if trainer.args.n_gpu > 1:
        spread = f"one process on {trainer.args.n_gpu} GPUs by DataParallel"
        hint = f"launch.processes={trainer.args.n_gpu}, or CUDA_VISIBLE_DEVICES=0"
        raise _other("processes", "one process on one GPU", spread, hint)
    precision = {"no": "float32"}.get(str(accelerator.mixed_precision), str(accelerator.mixed_precision))
    if launch.precision not in ("auto", precision):
        unset = "or unset the variables that `env | grep ACCELERATE` shows"
        raise _other("precision", launch.precision, precision, f"launch.precision={precision}", unset)
    if launch.device not in ("auto", device):
        raise _other("device", launch.device, device, f"launch.device={device}")


def _other(key: str, asked: str, seen: str, hint: str, advice: str | None = None) -> UserError:
    what, where = f"the run does not have the launch.{key} that was asked for", f"launch.{key}"
    return ConfigError(what, where=where, got=seen, expected=asked, hint=hint, advice=advice)


def trainer_facts(trainer: ExtendedTrainer) -> dict[str, object]:
    """Return the facts about a built trainer for the provenance: where it runs, its initial model and its data."""
    import torch

    accelerator, config = trainer.accelerator, trainer.model.config
    path, commit = str(config._name_or_path), getattr(config, "_commit_hash", None)
    weights = None if commit else weights_hash(Path(path))
    on_cuda = str(accelerator.device).startswith("cuda")
    left_out = {name: dict(counts) for name, counts in trainer.extensions.left_out.items()}
    lengths = getattr(trainer, "lengths", {})
    return {
        "world_size": accelerator.num_processes,
        "distributed_type": str(accelerator.distributed_type.value),
        "device": str(accelerator.device),
        "torch_threads": torch.get_num_threads(),
        "rlhf_code": code_hash(),
        **({"device_name": torch.cuda.get_device_name(), "cuda": torch.version.cuda} if on_cuda else {}),
        "mixed_precision": accelerator.mixed_precision,
        # of ZeRO-3's shards the whole parameter
        "num_parameters": sum(getattr(one, "ds_numel", one.numel()) for one in trainer.model.parameters()),
        "num_train_rows": len(trainer.train_dataset),
        "starting_model": {"path": path, "commit": commit, "weights_sha256": weights},
        **pass_facts(trainer),
        **({"left_out": left_out} if left_out else {}),
        **({"lengths": {name: measured.facts() for name, measured in lengths.items()}} if lengths else {}),
    }


def say_slow_paths(trainer: ExtendedTrainer, show: Callable[[Text], None], said: set[str]) -> dict[str, object]:
    """Say on the screen and in log.txt which speed paths are off, but for those in `said`; return `pass_facts`."""
    for name, why in trainer.slow_paths().items():
        line = f"note: {name} is off: {why} (docs/development/performance.md)"
        if line not in said:
            said.add(line)
            show(Text(line))
            logging.getLogger("rlhf").info(line)
    return pass_facts(trainer)


def pass_facts(trainer: ExtendedTrainer) -> dict[str, object]:
    """Return how rows pass the models and how answers are generated, as expected before the first step; {} without."""
    passes, generation = getattr(trainer, "passes", None), getattr(trainer, "generation_mode", None)
    if passes is None or generation is None:
        return {}
    attention = getattr(trainer, "row_attention", None)
    attends = {"attention": attention} if attention is not None else {}
    told = f"{generation.name}: {generation.why}"
    return {"passes": passes.describe(), **attends, "generation": told, "slow_paths": trainer.slow_paths()}
