"""Parse a search's objective: a metric of metrics.jsonl to maximise or minimise."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from rlhf_cli.config.rules.stop_rules import logged_name
from rlhf_cli.errors import RunError
from rlhf_cli.runs.metrics_file import start_and_end
from rlhf_cli.suggest import nearest

_HELD_OUT = "eval_"
_SHOWN = 12


@dataclass(frozen=True)
class Objective:
    """A metric that a search maximises or minimises."""

    metric: str
    less_is_better: bool

    @property
    def direction(self) -> Literal["minimize", "maximize"]:
        """Return Optuna's name of the direction."""
        return "minimize" if self.less_is_better else "maximize"

    def __str__(self) -> str:
        return f"{'-' if self.less_is_better else ''}{self.metric}"


def read_objective(text: str, rewards: Iterable[str] = ()) -> Objective:
    """Return the objective of a text such as `rewards/correct/mean` or `-kl`.

    The name of one of the `rewards` means its raw mean, as in `rlhf compare --on` and `stop`.
    """
    return Objective(logged_name(text.removeprefix("-").strip(), rewards), text.startswith("-"))


def value_so_far(objective: Objective, logged: Sequence[float]) -> float | None:
    """Return the value of a metric from the events `logged` so far, or None if there is no finite number.

    For a training metric, this is the mean over the last tenth of its log events; for a held-out one, the last value.
    """
    values = [value for value in logged if math.isfinite(value)]
    if not values:
        return None
    if objective.metric.startswith(_HELD_OUT):
        return values[-1]
    span = start_and_end(values)
    return span[1] if span is not None else None


def refuse_unlogged(objectives: Sequence[Objective], logged: Iterable[str], *, where: str) -> None:
    """Raise RunError if an ended run never logged an objective. Suggest the nearest logged name."""
    names = sorted(logged)
    for objective in objectives:
        if objective.metric in names:
            continue
        close = nearest(objective.metric, names)
        some = [name for name in names if name.startswith(("rewards/", "kl", "completions/", "eval_"))] or names
        raise RunError(
            f"no run of this search logs {objective.metric}",
            where=where,
            got=f"sweep.objective={objective}",
            expected=f"a metric such as {', '.join(some[:_SHOWN])}" if some else "a metric that is logged",
            hint=f"sweep.objective={'-' if objective.less_is_better else ''}{close}" if close else "docs/metrics.md",
        )
