"""Save and restore what TRL itself loses of its rollouts, so that on-policy training resumes exactly.

The Trainer loses the buffered rollouts, the position in them, metrics that are not logged yet, and the data order from
the second epoch on. Every checkpoint includes that state, one file per rank.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError
from typing import TYPE_CHECKING, TypeAlias, TypedDict

import torch

from rlhf_cli.errors import RunError
from rlhf_cli.text.redaction import redacted_tree
from rlhf_cli.trainers.trl_protocol import TrlBatch, TrlTrainer

if TYPE_CHECKING:
    from trl.trainer.utils import RepeatSampler

_REFERENCE_FILE = "reference.pt"
_PLAIN = (str, int, float, bool, type(None), torch.Tensor)
_START_OVER = "rlhf train ... model.path=CHECKPOINT"


Table: TypeAlias = dict[str, list[object] | dict[str, list[object]]]
"""A table of completions in TRL's format, column -> values; `rewards` and `extra` hold columns of their own."""


class RolloutState(TypedDict):
    """TRL's state of one rank's rollouts between two optimizer steps, as tensors and plain values."""

    world_size: int
    step: int
    inputs: list[TrlBatch] | None
    metrics: dict[str, list[float]]
    table: Table
    loss: torch.Tensor
    last_logged_step: int


def save_rollouts(trainer: TrlTrainer, folder: Path) -> None:
    """Write this rank's rollout state into a checkpoint's folder, and the reference model if it moves."""
    # At the end of a window TRL generates new rollouts, so the buffer is not needed.
    is_used_up = trainer._step % (trainer.args.steps_per_generation * trainer.num_iterations) == 0
    state: RolloutState = {
        "world_size": trainer.accelerator.num_processes,
        "step": trainer._step,
        "inputs": None if is_used_up else trainer._buffered_inputs,
        "metrics": {name: list(values) for name, values in trainer._metrics["train"].items()},
        "table": _table(trainer._logs),
        "loss": trainer._tr_loss,
        "last_logged_step": trainer._globalstep_last_logged,
    }
    torch.save(state, folder / _rollout_file(trainer))
    is_sharded = trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled
    reference = _moving_reference(trainer)
    if reference is not None and trainer.args.should_save and not is_sharded:
        torch.save(reference.state_dict(), folder / _REFERENCE_FILE)


def load_rollouts(trainer: TrlTrainer, folder: Path, *, may_be_missing: bool) -> tuple[torch.Tensor, int] | None:
    """Restore what `save_rollouts` wrote. Return the pending loss and the step of the last log.

    Return None if there is no rollout state and it `may_be_missing`: the next step then begins with a rollout. Raise
    RunError if it is missing otherwise, cannot be read, or is of another number of ranks.
    """
    file, device = folder / _rollout_file(trainer), trainer.accelerator.device
    if may_be_missing and not file.is_file():
        return None
    # Under a launcher accelerate's CPU device is called cpu:0, which torch.load does not know.
    device = torch.device("cpu") if device.type == "cpu" else device
    with _readable(file, "rollout state"):
        state: RolloutState = torch.load(file, map_location=device, weights_only=True)
    if state["world_size"] != trainer.accelerator.num_processes:  # a rank's rollouts cannot be redistributed
        raise RunError(
            "the checkpoint was written by another number of processes",
            where=str(folder),
            got=f"{trainer.accelerator.num_processes} processes",
            expected=f"{state['world_size']}",
            hint=_START_OVER,
        )
    trainer._step, trainer._buffered_inputs = state["step"], state["inputs"]
    trainer._metrics["train"].update(state["metrics"])
    for name, column in state["table"].items():
        if isinstance(column, dict):
            for inner, values in column.items():
                trainer._logs[name][inner].extend(values)
        else:
            trainer._logs[name].extend(column)
    reference = _moving_reference(trainer)
    if reference is not None:
        with _readable(folder / _REFERENCE_FILE, "reference model"):
            reference.load_state_dict(torch.load(folder / _REFERENCE_FILE, map_location=device, weights_only=True))
    return state["loss"], state["last_logged_step"]


def skip_epochs(sampler: RepeatSampler | None, num_epochs: int) -> None:
    """Draw what TRL's sampler drew in the finished epochs: it uses one generator for all epochs."""
    generator = getattr(sampler, "generator", None)
    if sampler is None or generator is None:
        return
    for _ in range(num_epochs):
        torch.randperm(sampler.num_samples, generator=generator)


def _rollout_file(trainer: TrlTrainer) -> str:
    return f"rollout-rank{trainer.accelerator.process_index}.pt"


def _moving_reference(trainer: TrlTrainer) -> torch.nn.Module | None:
    """Return the reference model if it follows the policy during training, else None."""
    return trainer.ref_model if getattr(trainer.args, "sync_ref_model", False) else None


def _table(logs: Mapping[str, Iterable[object]]) -> Table:
    """Return the completions of the newest rollout, which TRL writes at every log; empty if they are not plain values.

    Without them, a log in the middle of a window replaces that step's table of completions by an empty one.
    """
    plain = {
        name: {inner: list(values) for inner, values in column.items()} if isinstance(column, dict) else list(column)
        for name, column in logs.items()
    }
    return redacted_tree(plain, values_only=True) if _is_plain(plain) else {}


def _is_plain(value: object) -> bool:
    """Return whether torch can load it without unpickling arbitrary objects."""
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(item) for key, item in value.items())
    if isinstance(value, list | tuple):
        return all(_is_plain(item) for item in value)
    return type(value) in _PLAIN


@contextmanager
def _readable(file: Path, what: str) -> Iterator[None]:
    """Raise RunError if a checkpoint's file is missing or holds more than plain values."""
    if not file.is_file():
        raise RunError(
            f"the checkpoint has no {what}: going on from it would silently train something else",
            where=str(file),
            expected="a checkpoint that this version wrote, with trainer.args.save_only_model=false",
            hint=_START_OVER,
        )
    try:
        yield
    except UnpicklingError as error:
        message = str(error).splitlines()[0]
        raise RunError(f"the {what} cannot be read", where=str(file), got=message, hint=_START_OVER) from error
