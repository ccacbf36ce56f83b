"""Hold a run's logged metrics as curves that grow with every log event."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlhf_cli.runs.metrics_file import TOTAL

_LONGEST = 4096
"""A curve with more points is halved by averaging neighbours, which bounds memory and time in a long run."""
_REWARD_MEAN = re.compile(r"^rewards/(?P<name>[^/]+)/mean$")
_NOT_A_REWARD = frozenset({"truncation"})
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Curve:
    """A metric over optimizer steps; values (n,) and steps (n,) without the events that lack it or hold null."""

    metric: str
    steps: Floats
    values: Floats

    def __len__(self) -> int:
        return len(self.values)

    def last(self, share: float) -> Curve:
        """Return the last `share` of the points, at least one if there are any."""
        first = len(self) - max(1, round(len(self) * share)) if len(self) else 0
        return Curve(self.metric, self.steps[first:], self.values[first:])

    def first(self, share: float) -> Curve:
        """Return the first `share` of the points, at least one if there are any."""
        end = max(1, round(len(self) * share)) if len(self) else 0
        return Curve(self.metric, self.steps[:end], self.values[:end])

    @property
    def mean(self) -> float:
        """Return the mean of the values. Raise ValueError for an empty curve."""
        if not len(self):
            raise ValueError(f"{self.metric} has no values")
        return float(self.values.mean())


class Log:
    """All curves of a run. `max_steps` is the last step of the training, or None if unknown."""

    def __init__(self, max_steps: int | None = None) -> None:
        self.max_steps = max_steps
        self.num_events = 0
        """Log events of training, without evaluations."""
        self.step = 0
        self._steps: dict[str, array[float]] = {}
        self._values: dict[str, array[float]] = {}
        self._held: dict[str, int] = {}
        self._widths: dict[str, int] = {}
        self._nulls: dict[str, int] = {}
        self._curves: dict[str, Curve] = {}

    @classmethod
    def of(cls, events: Iterable[Mapping[str, object]], max_steps: int | None = None) -> Log:
        """Return the log with these events."""
        log = cls(max_steps)
        for event in events:
            step = event.get("step")
            log.take(int(step) if isinstance(step, int | float) else log.step, event)
        return log

    def take(self, step: int, event: Mapping[str, object]) -> None:
        """Add a log event. Ignore values that are not numbers; count None and NaN as nulls."""
        if "train_runtime" in event:
            return
        self.step = max(self.step, step)
        if not any(name.startswith("eval_") for name in event):
            self.num_events += 1
        for name, value in event.items():
            if isinstance(value, int | float) and value - value == 0:  # neither NaN nor infinite
                self._add(name, step, float(value))
            elif value is None or isinstance(value, float):
                self._nulls[name] = self._nulls.get(name, 0) + 1
        self._curves.clear()

    def _add(self, name: str, step: int, value: float) -> None:
        steps, values = self._steps.setdefault(name, array("d")), self._values.setdefault(name, array("d"))
        width, held = self._widths.get(name, 1), self._held.get(name, 0)
        if held:  # the last point is still the mean of fewer than `width` values
            values[-1] += (value - values[-1]) / (held + 1)
            steps[-1] = step
        else:
            steps.append(step)
            values.append(value)
        self._held[name] = (held + 1) % width
        if len(values) >= _LONGEST and not self._held[name]:
            thinned = np.frombuffer(values).reshape(-1, 2).mean(axis=1)
            self._values[name] = array("d", thinned)
            self._steps[name] = array("d", steps[1::2])
            self._widths[name] = width * 2

    @property
    def progress(self) -> float:
        """Return the completed share of the training, or 1 if its length is unknown."""
        return self.step / self.max_steps if self.max_steps else 1.0

    def curve(self, name: str) -> Curve:
        """Return a metric's curve, empty if it was never a number."""
        if name not in self._curves:
            steps, values = self._steps.get(name, ()), self._values.get(name, ())
            self._curves[name] = Curve(name, np.array(steps), np.array(values))
        return self._curves[name]

    def first_of(self, *names: str) -> Curve:
        """Return the first of these curves that has points, else the first of them."""
        return next((curve for name in names if len(curve := self.curve(name))), self.curve(names[0]))

    def names(self, prefix: str = "") -> list[str]:
        """Return the metrics that have been a number, in the order of first occurrence."""
        return [name for name in self._values if name.startswith(prefix)]

    def nulls(self, name: str) -> int:
        """Return how often a metric was null: NaN, or not measurable."""
        return self._nulls.get(name, 0)

    def rewards(self) -> list[str]:
        """Return the names of the logged reward components, including those that were always null."""
        named = (_REWARD_MEAN.match(name) for name in dict.fromkeys([*self._values, *self._nulls]))
        return [match["name"] for match in named if match and match["name"] not in _NOT_A_REWARD]

    def weight(self, reward: str) -> float | None:
        """Return a reward's weight, or None if it changed; 1 if no weight is logged."""
        weights = self.curve(f"rewards/{reward}/weight").values
        if not len(weights):
            return 1.0
        return float(weights[-1]) if np.ptp(weights) <= 1e-9 * max(1.0, abs(float(weights[-1]))) else None

    def total(self) -> Curve:
        """Return the curve of the total reward."""
        return self.curve(TOTAL)
