"""Collect facts about a run that only the worker knows: processes, devices, numbers of weights and rows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rlhf_cli.runs.provenance import code_hash, weights_hash

if TYPE_CHECKING:  # imports torch
    from rlhf_cli.trainers.additions import BuiltWhole


def seen_of(trainer: BuiltWhole) -> dict[str, object]:
    """Return the facts about a built trainer for the provenance: where it runs, its initial model and its data."""
    from rlhf_cli.trainers.sharded_parameters import num_elements

    accelerator = trainer.accelerator
    left_out = {name: dict(counts) for name, counts in trainer.additions.left_out.items()}
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
        **ways_of(trainer),
        **({"left_out": left_out} if left_out else {}),
        **({"lengths": {name: measured.facts() for name, measured in lengths.items()}} if lengths else {}),
    }


def said_of(trainer: BuiltWhole) -> list[str]:
    """Return notes and warnings to print: rows that are dropped or cut, and models that cannot use the fast path."""
    said = []
    rewards, passes = trainer.additions.rewards, getattr(trainer, "passes", None)
    if passes is not None and passes.mode != "packed" and rewards is not None and rewards.passes == "auto":
        said.append(f"note: rows go through the model {passes.describe()} (docs/passes.md)")
    attention = getattr(trainer, "row_attention", None)
    if attention is not None and attention.why_a_row_each is not None and trainer.accelerator.device.type == "cuda":
        said.append(f"note: packed rows attend {attention.describe()} (docs/passes.md)")
    lengths = getattr(trainer, "lengths", {}).values()
    return said + [f"warning: {one.describe()}" for one in lengths if one.dropped or one.cut]


def ways_of(trainer: BuiltWhole) -> dict[str, object]:
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


def _starting_model(trainer: BuiltWhole) -> dict[str, str | None]:
    """Return the source of the initial weights, and the commit or hash that identifies them."""
    config = trainer.model.config
    path, commit = str(config._name_or_path), getattr(config, "_commit_hash", None)
    return {"path": path, "commit": commit, "weights_sha256": None if commit else weights_hash(Path(path))}
