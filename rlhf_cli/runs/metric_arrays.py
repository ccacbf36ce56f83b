"""Read metrics.jsonl as columns, and turn a curve into one number."""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rlhf_cli.errors import UserError
from rlhf_cli.runs.metrics_file import TOTAL, Event, iter_metrics, reward_names

Wanted = Callable[[str], bool]  # return whether to read the metric of this name

_NUMBERS = frozenset({int, float, type(None)})
_NOT_METRICS = ("step", "time_s")
_LAST_STEP = 2**31 - 1
_LAST = re.compile(r"last(?:-([1-9]\d*))?")


@dataclass(frozen=True)
class Series:
    """One metric of a run. `steps` and `values` have equal length, NaN if the run logged null."""

    steps: NDArray[np.int64]
    values: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.values)

    def up_to(self, step: int) -> Series:
        """Return the part of the series up to this step, inclusive."""
        kept = self.steps <= step
        return Series(self.steps[kept], self.values[kept])

    @property
    def finite(self) -> Series:
        """Return the part of the series that has numbers."""
        kept = np.isfinite(self.values)
        return Series(self.steps[kept], self.values[kept])


class MetricColumns(dict[str, tuple["array[int]", "array[float]"]]):
    """Maps metric -> its steps and values so far, in the order of first occurrence. `num_events` counts all events.

    They are arrays because a training keeps them in memory, and lists are five times larger.
    """

    def __init__(self, wanted: Wanted | None = None) -> None:
        self.num_events = self.last_step = 0
        self._is_wanted = cache(lambda name: name not in _NOT_METRICS and (wanted is None or wanted(name)))

    def take(self, step: int, event: Event) -> None:
        """Add a log event; ignore values that are neither numbers nor null."""
        step = max(0, min(step, _LAST_STEP))
        self.last_step = max(self.last_step, step)
        self.num_events += 1
        for name, value in event.items():
            if (type(value) in _NUMBERS or isinstance(value, float)) and self._is_wanted(name):
                steps, values = self.get(name) or self.setdefault(name, (array("i"), array("d")))
                steps.append(step)
                values.append(np.nan if value is None else value)  # type: ignore[arg-type]

    def series(self, name: str) -> Series:
        """Return the series of a metric so far, empty if it was never logged."""
        steps, values = self.get(name, ((), ()))
        return Series(np.array(steps, dtype=np.int64), np.array(values, dtype=np.float64))


def read_columns(path: Path, wanted: Wanted | None = None) -> MetricColumns:
    """Read a metrics.jsonl, which may be missing; `wanted` is None for all. Raise RunError as `iter_metrics` does."""
    return columns_of(iter_metrics(path), wanted)


def columns_of(events: Iterable[Event], wanted: Wanted | None = None) -> MetricColumns:
    """Return the columns of log events, each with a `step`."""
    columns = MetricColumns(wanted)
    for event in events:
        columns.take(int(event["step"]), event)  # type: ignore[call-overload]
    return columns


class WindowKind(StrEnum):
    """Which log events of a curve count. A comparison takes the last; an expectation may take others."""

    LAST = "last"
    BEST = "best"
    FIRST = "first"


@dataclass(frozen=True)
class Window:
    """The part of a curve that counts. `num_events` None means a tenth of the log events."""

    kind: WindowKind = WindowKind.LAST
    num_events: int | None = None

    def __str__(self) -> str:
        return self.kind if self.num_events is None else f"{self.kind}-{self.num_events}"

    @property
    def in_words(self) -> str:
        """Return a description for a legend."""
        events = "tenth of the log events" if self.num_events is None else f"{self.num_events} log events"
        return f"mean of the {self.kind} {events}"

    def of(self, series: Series, *, more_is_better: bool = True) -> float:
        """Return the number, NaN without a finite value. Nulls count for the window's width but not in the mean."""
        if self.kind == WindowKind.BEST:
            return self.best(series, more_is_better=more_is_better)[0]
        values, width = series.values, self._width(series)
        kept = values[len(values) - width :] if self.kind == WindowKind.LAST else values[:width]
        kept = kept[np.isfinite(kept)]
        return float(kept.mean()) if len(kept) else float("nan")

    def best(self, series: Series, *, more_is_better: bool = True) -> tuple[float, float]:
        """Return the best running mean and the step where it ends; the best value if every stretch has a null."""
        values, width, sign = series.values, self._width(series), 1 if more_is_better else -1
        if not np.isfinite(values).any():
            return float("nan"), float("nan")
        # Divide the sum at the end: twelve twelfths of 1 add up to less than 1, and would miss a bound of 1.
        means = np.convolve(values, np.ones(width), mode="valid") / width
        if not np.isfinite(means).any():
            means, width = values, 1
        place = int(np.where(np.isfinite(means), sign * means, -np.inf).argmax())
        return float(means[place]), int(series.steps[place + width - 1])

    def _width(self, series: Series) -> int:
        return min(self.num_events or max(1, len(series) // 10), len(series))


def number_of(
    metrics: MetricColumns, metric: str, window: Window, *, more_is_better: bool = True, up_to: int | None = None
) -> float:
    """Return the value of a logged metric in a window, or NaN; for a held-out metric its latest finite value."""
    series = metrics.series(metric)
    if up_to is not None:
        series = series.up_to(up_to)
    if metric.startswith("eval_"):
        series, window = series.finite, Window(num_events=1)
    return window.of(series, more_is_better=more_is_better)


def start_and_end(series: Series) -> tuple[float, float] | None:
    """Return the means of the first and the last tenth of a series, NaN for one of nulls; None without any number."""
    if not len(series.finite):
        return None
    return Window(WindowKind.FIRST).of(series), Window().of(series)


def reward_spans(columns: MetricColumns) -> dict[str, tuple[float, float]]:
    """Return (start, end) of the raw mean of `reward` (the total) and each component that has numbers."""
    metrics = {TOTAL: TOTAL, **{name: f"rewards/{name}/mean" for name in reward_names([columns])}}
    spans = {name: start_and_end(columns.series(metric)) for name, metric in metrics.items()}
    return {name: span for name, span in spans.items() if span is not None}


def parse_window(text: str) -> Window:
    """Return the window for `last` or `last-K`. Raise UserError for anything else."""
    if match := _LAST.fullmatch(text):
        return Window(num_events=int(match[1]) if match[1] else None)
    expected = "last (a tenth of the log events) or last-K (K log events)"
    raise UserError("unknown window", where="--window", got=text, expected=expected, hint="--window last-20")
