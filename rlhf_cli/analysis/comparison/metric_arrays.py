"""Read metrics.jsonl as columns, and turn a curve into one number."""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rlhf_cli.errors import UserError
from rlhf_cli.runs.metrics_file import Event, iter_metrics

Wanted = Callable[[str], bool]
"""Return whether to read the metric of this name."""

_NUMBERS = frozenset({int, float, type(None)})
_NOT_METRICS = ("step", "time_s")


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


NO_SERIES = Series(np.empty(0, dtype=np.int64), np.empty(0))


class MetricColumns(dict[str, Series]):
    """Metric -> series, in the order of first occurrence. `num_events` counts the whole file."""

    num_events: int = 0
    last_step: int = 0

    def series(self, name: str) -> Series:
        """Return the series of a metric, empty if it was never logged."""
        return self.get(name, NO_SERIES)


def read_columns(path: Path, wanted: Wanted | None = None) -> MetricColumns:
    """Read a metrics.jsonl, which may be missing; `wanted` is None for all. Raise RunError as `iter_metrics` does."""
    return columns_of(iter_metrics(path), wanted)


def columns_of(events: Iterable[Event], wanted: Wanted | None = None) -> MetricColumns:
    """Return the columns of log events, each with a `step`; ignore values that are neither numbers nor null."""
    names_of: dict[tuple[str, ...], list[str]] = {}  # by keys of an event: most events have the same keys
    values_of: dict[str, tuple[array[int], array[float]]] = {}
    columns = MetricColumns()
    for event in events:
        columns.num_events += 1
        keys = tuple(event)
        if keys not in names_of:
            names_of[keys] = [name for name in keys if name not in _NOT_METRICS and (wanted is None or wanted(name))]
        step = int(event["step"])  # type: ignore[call-overload]
        columns.last_step = max(columns.last_step, step)
        for name in names_of[keys]:
            value = event[name]
            if type(value) in _NUMBERS:
                if name not in values_of:
                    values_of[name] = array("q"), array("d")
                steps, values = values_of[name]
                steps.append(step)
                values.append(np.nan if value is None else value)  # type: ignore[arg-type]
    for name, (steps, values) in values_of.items():
        columns[name] = Series(np.frombuffer(steps, dtype=np.int64), np.frombuffer(values))
    return columns


_LAST = re.compile(r"last(?:-([1-9]\d*))?")


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
        values = series.values
        if not np.isfinite(values).any():
            return float("nan")
        width = min(self.num_events or max(1, len(values) // 10), len(values))
        if self.kind == WindowKind.BEST:
            # Divide the sum at the end: twelve twelfths of 1 add up to less than 1, and would miss a bound of 1.
            means = np.convolve(values, np.ones(width), mode="valid") / width
            means = means[np.isfinite(means)]
            if not len(means):
                means = values[np.isfinite(values)]
            return float(means.max() if more_is_better else means.min())
        kept = values[-width:] if self.kind == WindowKind.LAST else values[:width]
        kept = kept[np.isfinite(kept)]
        return float(kept.mean()) if len(kept) else float("nan")


def parse_window(text: str) -> Window:
    """Return the window for `last` or `last-K`. Raise UserError for anything else."""
    if match := _LAST.fullmatch(text):
        return Window(num_events=int(match[1]) if match[1] else None)
    expected = "last (a tenth of the log events) or last-K (K log events)"
    raise UserError("unknown window", where="--window", got=text, expected=expected, hint="--window last-20")
