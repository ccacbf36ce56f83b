"""Resume on-policy training exactly, with what was typed for the resumed run.

The Trainer restores weights, optimizer, schedule and random numbers. It loses TRL's own state: buffered rollouts, the
position in them, metrics that are not logged yet, and the data order from the second epoch on. Here every checkpoint
includes that state, one file per rank.

It restores the optimizer's options and the schedule's base rates with their state, and the intervals of saving, logging
and evaluating with the Trainer's. If a checkpoint lacks part of its state, it silently continues without it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from rlhf_cli.errors import RunError
from rlhf_cli.runs.checkpoint_folders import checkpoint_folder, missing_state, refuse_missing
from rlhf_cli.text.redaction import redacted_tree
from rlhf_cli.trainers.additions import Additions
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


class ExactResume(TrlTrainer):
    """For a TRL trainer with buffered rollouts (`_step`, `_buffered_inputs`): save and restore them."""

    additions: Additions
    _train_sampler: RepeatSampler | None = None
    _pending_loss: tuple[torch.Tensor, int] | None = None

    def _get_train_sampler(self, dataset: Any = None) -> RepeatSampler | None:
        self._train_sampler = super()._get_train_sampler(dataset)
        return self._train_sampler

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        super()._save_checkpoint(model, trial)
        if self.args.save_only_model:
            return
        folder = checkpoint_folder(Path(self._get_output_dir(trial)), self.state.global_step)
        torch.save(_rollout_state(self), folder / _rollout_file(self.accelerator.process_index))
        is_sharded = self.is_deepspeed_enabled or self.is_fsdp_enabled
        reference = _moving_reference(self)
        if reference is not None and self.args.should_save and not is_sharded:
            torch.save(reference.state_dict(), folder / _REFERENCE_FILE)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is None:
            return
        rank, device = self.accelerator.process_index, self.accelerator.device
        if self.additions.may_lose_state and not Path(checkpoint, _rollout_file(rank)).is_file():
            _skip_epochs(self._train_sampler, int(self.state.epoch or 0))
            return  # the next step begins with a rollout
        with _readable(Path(checkpoint, _rollout_file(rank)), "rollout state") as file:
            state: RolloutState = torch.load(file, map_location=_place(device), weights_only=True)
        _refuse_another_world_size(state["world_size"], self.accelerator.num_processes, checkpoint)
        _restore(self, state)
        self._pending_loss = (state["loss"], state["last_logged_step"])
        reference = _moving_reference(self)
        if reference is not None:
            with _readable(Path(checkpoint, _REFERENCE_FILE), "reference model") as file:
                reference.load_state_dict(torch.load(file, map_location=_place(device), weights_only=True))
        _skip_epochs(self._train_sampler, int(self.state.epoch or 0))

    def _load_rng_state(self, checkpoint: str | None) -> None:
        super()._load_rng_state(checkpoint)
        # The Trainer sets these to zero after it has loaded the rest; it calls this method once before its first step.
        if self._pending_loss is not None:
            loss, self._globalstep_last_logged = self._pending_loss
            self._tr_loss += loss
            # The Trainer reports the mean loss of this call's own steps at the end.
            self._total_loss_scalar -= loss.item()
            self._pending_loss = None


def _rollout_file(rank: int) -> str:
    return f"rollout-rank{rank}.pt"


def _rollout_state(trainer: TrlTrainer) -> RolloutState:
    """Return TRL's state of this rank's rollouts between two optimizer steps, as tensors and plain values."""
    # At the end of a window TRL generates new rollouts, so the buffer is not needed.
    is_used_up = trainer._step % (trainer.args.steps_per_generation * trainer.num_iterations) == 0
    return {
        "world_size": trainer.accelerator.num_processes,
        "step": trainer._step,
        "inputs": None if is_used_up else trainer._buffered_inputs,
        "metrics": {name: list(values) for name, values in trainer._metrics["train"].items()},
        "table": _table(trainer._logs),
        "loss": trainer._tr_loss,
        "last_logged_step": trainer._globalstep_last_logged,
    }


def _restore(trainer: TrlTrainer, state: RolloutState) -> None:
    trainer._step, trainer._buffered_inputs = state["step"], state["inputs"]
    trainer._metrics["train"].update(state["metrics"])
    for name, column in state["table"].items():
        if isinstance(column, dict):
            for inner, values in column.items():
                trainer._logs[name][inner].extend(values)
        else:
            trainer._logs[name].extend(column)


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
def _readable(file: Path, what: str) -> Iterator[Path]:
    """Yield a checkpoint's file for reading. Raise RunError if it is missing or holds more than plain values."""
    if not file.is_file():
        raise RunError(
            f"the checkpoint has no {what}: going on from it would silently train something else",
            where=str(file),
            expected="a checkpoint that this version wrote, with trainer.args.save_only_model=false",
            hint=_START_OVER,
        )
    try:
        yield file
    except UnpicklingError as error:
        message = str(error).splitlines()[0]
        raise RunError(f"the {what} cannot be read", where=str(file), got=message, hint=_START_OVER) from error


def _place(device: torch.device) -> torch.device:
    """Return the device to load onto.

    Under a launcher accelerate's CPU device is called cpu:0, which torch.load does not know.
    """
    return torch.device("cpu") if device.type == "cpu" else device


def _refuse_another_world_size(saved: int, now: int, checkpoint: str) -> None:
    """Raise RunError for a different number of ranks: each rank's rollouts cannot be redistributed."""
    if saved != now:
        raise RunError(
            "the checkpoint was written by another number of processes",
            where=checkpoint,
            got=f"{now} processes",
            expected=f"{saved}",
            hint=_START_OVER,
        )


def _moving_reference(trainer: TrlTrainer) -> torch.nn.Module | None:
    """Return the reference model if it follows the policy during training, else None."""
    return trainer.ref_model if getattr(trainer.args, "sync_ref_model", False) else None


def _skip_epochs(sampler: RepeatSampler | None, num_epochs: int) -> None:
    """Draw what TRL's sampler drew in the finished epochs: it uses one generator for all epochs."""
    generator = getattr(sampler, "generator", None)
    if sampler is None or generator is None:
        return
    for _ in range(num_epochs):
        torch.randperm(sampler.num_samples, generator=generator)


_OPTIONS = ("weight_decay", "betas", "eps")
"""The optimizer options that come from arguments; some optimizers also keep counters in their groups."""


class ResumedState(TrlTrainer):
    """Mixed in directly above TRL: load a checkpoint's state completely or, if allowed, not at all."""

    additions: Additions
    _from_weights_alone: bool = False

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is None:
            super()._load_optimizer_and_scheduler(checkpoint)
            return
        # The Trainer's state came from the checkpoint, including the old intervals of saving and logging.
        self.state.compute_steps(self.args, self.state.max_steps)
        missing = missing_state(Path(checkpoint))
        if missing and not self.additions.may_lose_state:
            refuse_missing(Path(checkpoint), missing)
        if missing:
            self._from_weights_alone = True
            if self.is_world_process_zero():
                lacks = f"{Path(checkpoint).name} lacks {', '.join(missing)}"
                print(f"{lacks}: going on from its weights; optimizer, schedule and random numbers begin anew")
            return
        groups = self.optimizer.param_groups
        asked = [{name: value for name, value in group.items() if name in _OPTIONS} for group in groups]
        schedule = getattr(self.lr_scheduler, "scheduler", self.lr_scheduler)
        rates = list(getattr(schedule, "base_lrs", []))
        super()._load_optimizer_and_scheduler(checkpoint)
        for group, options in zip(self.optimizer.param_groups, asked, strict=True):
            group.update(options)
        _follow(schedule, self.optimizer, rates)

    def _run_epoch(self, *args: Any, **named: Any) -> None:
        """Skip the epoch if the last step is done: a run that was killed before it finished has no steps left."""
        if self.state.global_step >= self.state.max_steps:
            self.control.should_training_stop = True  # transformers would make one step more
            return
        super()._run_epoch(*args, **named)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        if not self._from_weights_alone:
            super()._load_rng_state(checkpoint)


def _follow(schedule: object, optimizer: Optimizer, rates: list[float]) -> None:
    """Set the learning rates of the schedule's current step from the new arguments.

    They are unchanged if the arguments are. A schedule that is not a factor per step only has its old rates: for it,
    raise RunError if the base rate changed.
    """
    if not isinstance(schedule, LambdaLR):
        if rates != list(getattr(schedule, "base_lrs", [])):
            raise RunError(
                "this schedule keeps the learning rate that it was begun with",
                where="trainer.args.learning_rate",
                got=type(schedule).__name__,
                hint="rlhf train ... model.path=CHECKPOINT",
            )
        return
    schedule.base_lrs = [*rates]
    factors = [factor(schedule.last_epoch) for factor in schedule.lr_lambdas]
    for group, rate, factor in zip(optimizer.param_groups, rates, factors, strict=True):
        group["initial_lr"], group["lr"] = rate, rate * factor
    schedule._last_lr = [group["lr"] for group in optimizer.param_groups]
