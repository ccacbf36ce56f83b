"""Decide whether a change leaves the result alone when that depends on the rest of the experiment."""

from __future__ import annotations

from collections.abc import Callable

from rlhf_cli.config import trl_args
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.config.schema.reward_section import Weight
from rlhf_cli.plan.devices import planned_processes

_ANY_LENGTH = ("constant", "constant_with_warmup", "inverse_sqrt", "reduce_lr_on_plateau")
"""Schedules of transformers in which no learning rate depends on the total number of steps."""

Condition = Callable[[Experiment, int | None], str | None]
"""Takes the frozen experiment and the number of processes it ran as (None if it never started). Returns why a change
changes the result, or None if it does not.
"""


def argument(experiment: Experiment, name: str) -> object:
    """Return the value of a TRL argument, or its default if it is not set."""
    default = trl_args.trainer(experiment.trainer.trl).fields.get(name)
    return experiment.trainer.args.get(name, default.default if default is not None else None)


def _steps_do_not_shape(experiment: Experiment, _: int | None) -> str | None:
    """Return which setting is spread over all steps, so that another number of steps changes every later one."""
    schedule = str(argument(experiment, "lr_scheduler_type"))
    if schedule not in _ANY_LENGTH:
        return f"lr_scheduler_type={schedule} spreads the learning rate over all steps: those to come get another one"
    warmup = argument(experiment, "warmup_steps")
    is_share = isinstance(warmup, float) and 0 < warmup < 1
    if schedule != "constant" and (is_share or argument(experiment, "warmup_ratio")):
        return "the warm-up is a share of all steps"
    for name, reward in experiment.rewards.items():
        if isinstance(reward.weight, Weight) and reward.weight.fraction is not None:
            return f"rewards.{name}.weight changes over a fraction of all steps"
    return None


def _as_many_processes(experiment: Experiment, ran_as: int | None) -> str | None:
    """Return why another number of processes would not continue exactly."""
    now = planned_processes(experiment.launch)
    if ran_as is None or now == ran_as:
        return None
    return f"{now} would come up, it ran as {ran_as}, and each has random numbers and rollouts of its own"


def _no_best_is_chosen(experiment: Experiment, _: int | None) -> str | None:
    """Return how the result depends on when the run is evaluated and saved."""
    if argument(experiment, "load_best_model_at_end"):
        return "load_best_model_at_end: which checkpoint is the best hangs on when there is one and how it is evaluated"
    if argument(experiment, "lr_scheduler_type") == "reduce_lr_on_plateau":
        return "lr_scheduler_type=reduce_lr_on_plateau follows the evaluations"
    return None


CONDITIONS: dict[str, Condition] = {
    "steps do not shape the run": _steps_do_not_shape,
    "no best is chosen": _no_best_is_chosen,
    "as many processes": _as_many_processes,
}
"""The names that tables/resume_keys.py uses."""
