"""Apply a resumed run's new arguments, which transformers would partly overwrite with the old ones.

It restores the optimizer's options and the schedule's base rates with their state, and the intervals of saving, logging
and evaluating with the Trainer's. If a checkpoint lacks part of its state, it silently continues without it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from rlhf_cli.errors import RunError
from rlhf_cli.runs.checkpoint_state import missing_state, refuse_missing
from rlhf_cli.trainers.additions import Additions
from rlhf_cli.trainers.trl_protocol import TrlTrainer

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
