"""Define findings and the setup of a run, hold its log as curves, and tell trends from noise.

A line is fitted by least squares. The residuals from a parabola, which may bend like a learning curve, give the size of
the noise and its memory: of n values whose residuals have the lag-one autocorrelation r1, only

    n_e = n (1 - r1) / (1 + r1)

count (Santer et al. 2000, Journal of Geophysical Research 105, equations 3 to 6), in the variance of the residuals and
in the degrees of freedom of Student's t, n_e - 3 for a parabola. Fitting biases r1 towards 0, by about (1 + 3 r1) / n
(Kendall 1954, Biometrika 41, for an AR(1) process), which is corrected.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, cast

import numpy as np

from rlhf_cli.numerics.intervals import t_quantile
from rlhf_cli.runs.heartbeat import TimeSpent
from rlhf_cli.runs.metric_arrays import MetricColumns, Series
from rlhf_cli.runs.metrics_file import reward_names
from rlhf_cli.tables.trl_values import UNREAD
from rlhf_cli.text.json_values import JsonTree, leaves, section

Severity = Literal["serious", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("serious", "warning", "note")
"""The severities, worst first. serious: the run does not achieve its purpose. warning: it costs the run something, or
soon will. note: true and worth a thought, but not shown during training.
"""


@dataclass(frozen=True)
class Evidence:
    """A metric that supports a finding: its curve, and a description with numbers and steps."""

    metric: str
    says: str
    steps: tuple[int, ...] = ()
    values: tuple[float, ...] = ()


@dataclass(frozen=True)
class Fix:
    """An override to type, such as `rewards.brevity.weight=0`, and its effect."""

    words: str
    reason: str


@dataclass(frozen=True)
class Finding:
    """A present or imminent problem, observed from `first_step` to `last_step`.

    `kind` is one of tables/metrics.py; `run_check` fills it in. `subject` is the reward or pair concerned if there may
    be several, else ''.
    """

    kind: str = field(default="", kw_only=True)
    subject: str
    severity: Severity
    what: str
    evidence: tuple[Evidence, ...]
    first_step: int
    last_step: int
    changes: tuple[Fix, ...] = ()


@dataclass(frozen=True)
class PassedCheck:
    """A check that passed; `says` has the numbers."""

    kind: str = field(default="", kw_only=True)
    says: str


@dataclass(frozen=True)
class SkippedCheck:
    """A check that was impossible, and why: a metric that is not logged, too few steps, too much noise."""

    kind: str = field(default="", kw_only=True)
    why: str


CheckResult = Finding | PassedCheck | SkippedCheck


_DEFAULT_LIMIT = 256  # TRL's default of max_completion_length
_ARGS = "trainer.args."
_READ_WITH: dict[str, tuple[str, tuple[object, ...]]] = {
    **{f"{_ARGS}{name}": (f"{_ARGS}{decides}", values) for name, decides, values in UNREAD},
    "kl.coef": ("kl.where", ("reward", "loss")),
}
"""Key -> the key that decides whether it is read, and its values with which it is."""


@dataclass(frozen=True)
class RunSetup:
    """The configuration of a run: `values` by full keys, `args` of TRL as given, and its `folder` as it is typed."""

    trainer: str = ""
    has_critic: bool = False
    args: JsonTree = field(default_factory=dict)
    rewards: Mapping[str, JsonTree] = field(default_factory=dict)
    truncation: str = "none"
    folder: str = "RUN"
    values: Mapping[str, object] = field(default_factory=dict, compare=False)

    @classmethod
    def of(cls, config: JsonTree, folder: str = "RUN") -> RunSetup:
        """Return the setup of the run in `folder`, by its configuration; missing or malformed entries get defaults."""
        trainer = section(config, "trainer")
        return cls(
            trainer=str(trainer.get("name") or ""),
            has_critic=trainer.get("baseline") == "critic",
            args=section(trainer, "args"),
            rewards={name: entry for name, entry in section(config, "rewards").items() if isinstance(entry, dict)},
            truncation=str(section(config, "truncation").get("policy") or "none"),
            folder=shlex.quote(folder),
            values=dict(leaves(config)),
        )

    @property
    def limit(self) -> int:
        """Return the maximum number of tokens of a completion."""
        return int(self.number("max_completion_length", _DEFAULT_LIMIT))

    def number(self, name: str, default: float) -> float:
        """Return a numeric argument of TRL or, by a full key, another number of the configuration; else `default`."""
        value = (self.values if "." in name else self.args).get(name)
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else default

    def changes_by(self, words: str) -> bool:
        """Return whether the run reads what this override sets, and has another value; True for other commands."""
        key, _, text = words.partition("=")
        decides, with_values = _READ_WITH.get(key, ("", ()))
        now = self.values.get("truncation.policy" if key == "truncation" else key)
        is_number = isinstance(now, int | float) and not isinstance(now, bool)
        is_same = text == (f"{now:g}" if is_number else str(now).lower())
        return not is_same and (decides not in self.values or self.values[decides] in with_values)


ENOUGH = 10
"""Minimum number of points to judge a level: one batch in ten may always be unusual."""
ENOUGH_FOR_TREND = 12
"""Minimum number of points to judge a trend: a line through fewer has too few degrees of freedom. A round of PPO is one
point, so a run of hundreds of steps has tens of points.
"""
LATE = 0.5
"""The final share of a curve used to judge a level: a state that lasts for half of a run is not temporary."""
SURE = 0.005
"""The false-positive probability of a trend test. With about fifteen checks per run, the total is below a tenth."""
_DRAWN = 60
_LONGEST_MEMORY = 0.95
_FEWEST = 4.0
"""Minimum number of effective values: with fewer, Student's t has too few degrees of freedom."""


@dataclass(frozen=True)
class Curve(Series):
    """A metric over optimizer steps, without the events that lack it or hold null."""

    metric: str

    def last(self, share: float) -> Curve:
        """Return the last `share` of the points, at least one if there are any."""
        count = max(1, round(len(self) * share))
        return Curve(self.steps[-count:], self.values[-count:], self.metric)

    def first(self, share: float) -> Curve:
        """Return the first `share` of the points, at least one if there are any."""
        count = max(1, round(len(self) * share))
        return Curve(self.steps[:count], self.values[:count], self.metric)

    def times(self, factor: float) -> Curve:
        """Return the curve with all its values multiplied."""
        return Curve(self.steps, factor * self.values, self.metric)

    @property
    def mean(self) -> float:
        """Return the mean of the values of a curve that has points."""
        return float(self.values.mean())

    def means(self, parts: int) -> list[float]:
        """Return the means of `parts` consecutive parts, or all values if there are fewer."""
        return [float(part.mean()) for part in np.array_split(self.values, min(parts, len(self)))] if len(self) else []

    @property
    def first_and_last(self) -> tuple[int, int]:
        """Return the first and the last step of a curve that has points."""
        return int(self.steps[0]), int(self.steps[-1])

    def from_to(self) -> str:
        """Return `0.42 -> 0.9, steps 1 to 120`: the means of the first and of the last tenth."""
        first, last = self.first_and_last
        return f"{self.first(0.1).mean:.3g} -> {self.last(0.1).mean:.3g}, steps {first} to {last}"

    def on_average(self) -> str:
        """Return `0.97 on average over steps 60 to 120`."""
        first, last = self.first_and_last
        return f"{self.mean:.3g} on average over steps {first} to {last}"

    def evidence(self, says: str | None = None) -> Evidence:
        """Return the curve as evidence, thinned for one terminal line; `says` defaults to where it begins and ends."""
        stride = max(1, len(self) // _DRAWN)
        steps = tuple(int(step) for step in self.steps[::stride])
        values = tuple(float(value) for value in self.values[::stride])
        return Evidence(self.metric, says or self.from_to(), steps, values)

    def passed(self, more: str = "") -> PassedCheck:
        """Return a passed check that shows where the curve begins and ends."""
        return PassedCheck(f"{self.metric}: {self.from_to()}{more}")

    def too_few(self, enough: int) -> SkippedCheck | None:
        """Return why the curve has too few points to judge, or None if it has enough."""
        if len(self) >= enough:
            return None
        seen = f"{len(self)} log events have {self.metric}; this check needs {enough}"
        return SkippedCheck(seen if len(self) else f"{self.metric} is not logged")

    def finding(
        self, severity: Severity, what: str, fixes: Iterable[Fix], *evidence: Evidence, subject: str = ""
    ) -> Finding:
        """Return a finding over the steps of the curve. Without `evidence`, the whole curve is its evidence."""
        shown = evidence or (self.evidence(),)
        return Finding(subject, severity, what, shown, *self.first_and_last, tuple(fixes))

    def trend(self) -> Trend | None:
        """Return the line through the curve, or None if too few of its values are independent."""
        n = len(self)
        if n <= _FEWEST:
            return None
        x = self.steps - self.steps.mean()
        y = self.values - self.values.mean()
        spread = float(x @ x)
        if spread == 0.0:
            return None
        slope = float(x @ y) / spread
        residuals = y - slope * x
        length = float(self.steps[-1] - self.steps[0])
        start = self.mean + slope * float(x[0])
        # The part of a parabola that is neither constant nor straight.
        bend = x * x - spread / n
        bend -= x * (float(x @ bend) / spread)
        if (size := float(bend @ bend)) > 0.0:
            residuals = residuals - bend * (float(bend @ residuals) / size)
        squares = float(residuals @ residuals)
        if squares <= 1e-18 * max(1.0, float(self.values @ self.values)):  # no noise except rounding
            return Trend(start, slope * length, 0.0, n - 3.0)
        memory = max(0.0, float(residuals[1:] @ residuals[:-1]) / squares)
        memory = min(_LONGEST_MEMORY, memory + (1.0 + 3.0 * memory) / n) if memory else 0.0
        effective = n * (1.0 - memory) / (1.0 + memory)
        if effective < _FEWEST:
            return None
        freedom = max(1.0, effective - 3.0)
        return Trend(start, slope * length, math.sqrt(squares / freedom / spread) * length, freedom)


class Log:
    """All curves of a run. `max_steps` is the last step of the training, or None if unknown."""

    def __init__(self, max_steps: int | None = None) -> None:
        self.max_steps = max_steps
        self.num_events = 0
        """Log events of training, without evaluations."""
        self.step = 0
        self.times = TimeSpent()
        self._columns = MetricColumns()

    @classmethod
    def of(cls, events: Iterable[Mapping[str, object]], max_steps: int | None = None) -> Log:
        """Return the log with these events."""
        log = cls(max_steps)
        for event in events:
            log.take(int(cast(float, event["step"])), event)
        return log

    def take(self, step: int, event: Mapping[str, object]) -> None:
        """Add a log event. Ignore values that are neither numbers nor null."""
        self.times.take(event)
        if "train_runtime" in event:
            return
        if not any(name.startswith("eval_") for name in event):
            self.num_events += 1
        self._columns.take(step, event)
        self.step = self._columns.last_step

    def curve(self, *names: str) -> Curve:
        """Return the curve of the first of these metrics that was ever a number; if none was, the first, empty."""
        found = [(name, self._columns.series(name).finite) for name in names]
        name, finite = next((pair for pair in found if len(pair[1])), found[0])
        return Curve(finite.steps, finite.values, name)

    def names(self, prefix: str = "") -> list[str]:
        """Return the metrics that have been a number, in the order of first occurrence."""
        return [name for name in self._columns if name.startswith(prefix) and len(self.curve(name))]

    def nulls(self, name: str) -> int:
        """Return how often a metric was null: NaN, or not measurable."""
        return len(self._columns.series(name)) - len(self.curve(name))

    def rewards(self) -> list[str]:
        """Return the names of the logged reward components, including those that were always null."""
        return [name for name in reward_names([self.names(), self._columns]) if name != "truncation"]

    def weight(self, reward: str) -> float | None:
        """Return a reward's weight, or None if it changed; 1 if no weight is logged."""
        weights = self.curve(f"rewards/{reward}/weight").values
        if not len(weights):
            return 1.0
        return float(weights[-1]) if np.ptp(weights) <= 1e-9 * max(1.0, abs(float(weights[-1]))) else None

    def largest(self, name: str) -> float:
        """Return the largest value of a metric, 0 if it was never logged."""
        return float(max(self.curve(name).values, default=0.0))

    def too_early(self, share: float = 0.5) -> SkippedCheck | None:
        """Return why it is too early to judge a lack of change; None after this share, or if the length is unknown."""
        if not self.max_steps or self.step / self.max_steps >= share:
            return None
        return SkippedCheck(f"step {self.step} of {self.max_steps} is too early to judge what does not change")


@dataclass(frozen=True)
class Trend:
    """A line through a curve: its value at the first step, its change to the last step, the change's standard error."""

    start: float
    change: float
    error: float
    freedom: float

    def interval(self, alpha: float) -> tuple[float, float]:
        """Return the two-sided confidence interval of the change with level 1 - `alpha`, by Student's t."""
        reach = t_quantile(1.0 - alpha / 2, max(1, round(self.freedom))) * self.error
        return self.change - reach, self.change + reach

    def rises(self, alpha: float) -> bool:
        """Return whether the change is significantly above 0, one-sided at level `alpha`."""
        return self.interval(2 * alpha)[0] > 0.0

    def falls(self, alpha: float) -> bool:
        """Return whether the change is significantly below 0, one-sided at level `alpha`."""
        return self.interval(2 * alpha)[1] < 0.0


def rounded(value: float) -> str:
    """Return a number with two significant digits, as one would type it: `0.00033`, `1.5`, `120`."""
    return f"{float(f'{value:.2g}'):g}"
