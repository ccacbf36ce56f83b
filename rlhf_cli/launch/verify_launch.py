"""Check in the worker that the launch came out as asked, and record what only the worker can see.

accelerate and transformers fall back silently: FSDP 2 on a CPU becomes plain DDP, one process with several GPUs becomes
DataParallel, and an environment variable can change the precision.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rlhf_cli.config.schema.launch_sections import Launch
from rlhf_cli.errors import ConfigError, Prose, UserError
from rlhf_cli.runs.provenance import code_hash, weights_hash
from rlhf_cli.tables.strategies import STRATEGIES

if TYPE_CHECKING:
    from rlhf_cli.trainers.extensions import ExtendedTrainer
    from rlhf_cli.trainers.trl_protocol import TrlTrainer

_PRECISION = {"no": "float32"}


@dataclass(frozen=True)
class BuiltAs:
    """The actual setup of a trainer, in accelerate's terms.

    `fsdp_version` and `zero_stage` are None without the plugin. `num_data_parallel` is the number of GPUs that
    transformers would spread this one process over.
    """

    distributed_type: str
    num_processes: int
    mixed_precision: str
    device: str
    fsdp_version: int | None = None
    zero_stage: int | None = None
    num_data_parallel: int = 1


def built_as(trainer: TrlTrainer) -> BuiltAs:
    """Return the actual setup of a trainer."""
    accelerator = trainer.accelerator
    fsdp = getattr(accelerator.state, "fsdp_plugin", None)
    zero = getattr(accelerator.state, "deepspeed_plugin", None)
    return BuiltAs(
        distributed_type=str(accelerator.distributed_type.value),
        num_processes=accelerator.num_processes,
        mixed_precision=str(accelerator.mixed_precision),
        device=str(accelerator.device).partition(":")[0],
        fsdp_version=getattr(fsdp, "fsdp_version", None),
        zero_stage=getattr(zero, "zero_stage", None),
        num_data_parallel=max(1, trainer.args.n_gpu),
    )


def refuse_other_world_size(launch: Launch) -> None:
    """Raise ConfigError if the number of processes differs from the requested one.

    accelerate and torchrun silently fall back to one process.
    """
    of_a_machine = launch.processes
    asked = of_a_machine if of_a_machine == "auto" else of_a_machine * launch.nodes
    seen = int(os.environ.get("WORLD_SIZE", "1"))
    if asked != "auto" and asked != seen:
        raise ConfigError(
            f"{asked} processes were asked for and {seen} came up",
            where="launch.processes",
            got=f"WORLD_SIZE={seen}",
            expected=str(asked),
            hint="rlhf train ... launch.processes=1, or rlhf resume RUN",
        )


def refuse_unless_as_asked(launch: Launch, built: BuiltAs) -> None:
    """Raise ConfigError for the first setting of a built trainer that differs from `launch`."""
    for problem in (
        _processes(launch, built),
        _strategy(launch, built),
        _precision(launch, built),
        _device(launch, built),
    ):
        if problem is not None:
            raise problem


def _processes(launch: Launch, built: BuiltAs) -> UserError | None:
    asked = None if launch.processes == "auto" else launch.processes * launch.nodes
    if asked is not None and built.num_processes != asked:
        return _other("processes", f"{asked}", f"{built.num_processes}", "rlhf resume RUN  # it starts them all")
    if built.num_data_parallel > 1:
        return _other(
            "processes",
            "one process on one GPU",
            f"one process spread over {built.num_data_parallel} GPUs by DataParallel",
            f"launch.processes={built.num_data_parallel}, or CUDA_VISIBLE_DEVICES=0",
        )
    return None


def _strategy(launch: Launch, built: BuiltAs) -> UserError | None:
    row = STRATEGIES[launch.strategy]
    seen = built.distributed_type
    if seen == "FSDP":
        seen = f"FSDP {built.fsdp_version}"
    elif seen == "DEEPSPEED":
        seen = f"ZeRO-{built.zero_stage}"
    is_same = built.distributed_type in row.distributed_types
    is_same = is_same and (row.zero_stage is None or built.zero_stage == row.zero_stage)
    if is_same and (launch.strategy != "fsdp2" or built.fsdp_version == 2):
        return None
    on_cpu = launch.strategy == "fsdp2" and built.device == "cpu"
    why = "; on a CPU accelerate runs it in place of FSDP without a word" if on_cpu else ""
    return _other("strategy", launch.strategy, f"{seen} on {built.device}{why}", "launch.strategy=ddp")


def _precision(launch: Launch, built: BuiltAs) -> UserError | None:
    seen = _PRECISION.get(built.mixed_precision, built.mixed_precision)
    if launch.precision in ("auto", seen):
        return None
    hint = Prose(f"launch.precision={seen}, or env | grep ACCELERATE, and unset what is there")
    return _other("precision", launch.precision, seen, hint)


def _device(launch: Launch, built: BuiltAs) -> UserError | None:
    if launch.device in ("auto", built.device):
        return None
    return _other("device", launch.device, built.device, f"launch.device={built.device}")


def _other(key: str, asked: str, seen: str, hint: str) -> UserError:
    return ConfigError(
        f"launch.{key} is not what this run has become", where=f"launch.{key}", got=seen, expected=asked, hint=hint
    )


def trainer_facts(trainer: ExtendedTrainer) -> dict[str, object]:
    """Return the facts about a built trainer for the provenance: where it runs, its initial model and its data."""
    from rlhf_cli.trainers.guard_mixin import num_elements

    accelerator = trainer.accelerator
    left_out = {name: dict(counts) for name, counts in trainer.extensions.left_out.items()}
    lengths = getattr(trainer, "lengths", {})
    return {
        "world_size": accelerator.num_processes,
        "distributed_type": str(accelerator.distributed_type.value),
        "device": str(accelerator.device),
        **_computed_with(str(accelerator.device).startswith("cuda")),
        "mixed_precision": accelerator.mixed_precision,
        "num_parameters": sum(map(num_elements, trainer.model.parameters())),
        "num_train_rows": len(trainer.train_dataset),
        "starting_model": _starting_model(trainer),
        **pass_facts(trainer),
        **({"left_out": left_out} if left_out else {}),
        **({"lengths": {name: measured.facts() for name, measured in lengths.items()}} if lengths else {}),
    }


def trainer_notes(trainer: ExtendedTrainer) -> list[str]:
    """Return notes and warnings to print: rows that are dropped or cut, and models that cannot use the fast path."""
    said = []
    rewards, passes = trainer.extensions.rewards, getattr(trainer, "passes", None)
    if passes is not None and passes.mode != "packed" and rewards is not None and rewards.passes == "auto":
        said.append(f"note: rows go through the model {passes.describe()} (docs/reference/passes.md)")
    attention = getattr(trainer, "row_attention", None)
    if attention is not None and attention.why_no_varlen is not None and trainer.accelerator.device.type == "cuda":
        said.append(f"note: packed rows attend {attention.describe()} (docs/reference/passes.md)")
    lengths = getattr(trainer, "lengths", {}).values()
    return said + [f"warning: {one.describe()}" for one in lengths if one.dropped or one.cut]


def pass_facts(trainer: ExtendedTrainer) -> dict[str, object]:
    """Return how rows pass through the models and how completions are generated, or {} if not applicable.

    Before the first step this is what is expected, after it what was observed.
    """
    passes, generation = getattr(trainer, "passes", None), getattr(trainer, "generation_mode", None)
    if passes is None or generation is None:
        return {}
    attention = getattr(trainer, "row_attention", None)
    attends = {"attention": attention.describe()} if attention is not None else {}
    return {"passes": passes.describe(), **attends, "generation": f"{generation.name}: {generation.why}"}


def _computed_with(on_cuda: bool) -> dict[str, object]:
    """Return facts that may affect the last bits of a result, besides package versions."""
    import torch

    cuda = {"device_name": torch.cuda.get_device_name(), "cuda": torch.version.cuda} if on_cuda else {}
    return {"torch_threads": torch.get_num_threads(), "rlhf_code": code_hash(), **cuda}


def _starting_model(trainer: ExtendedTrainer) -> dict[str, str | None]:
    """Return the source of the initial weights, and the commit or hash that identifies them."""
    config = trainer.model.config
    path, commit = str(config._name_or_path), getattr(config, "_commit_hash", None)
    return {"path": path, "commit": commit, "weights_sha256": None if commit else weights_hash(Path(path))}
