"""Reduce a curve to one number: the mean of its last events, its best window, or the area under it."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from rlhf_cli.comparison.metric_columns import Series
from rlhf_cli.errors import UserError

_LAST = re.compile(r"^last[-:](\d+)$")
_PART = 10
LAST, BEST, AREA, FIRST = "last", "best", "auc", "first"


@dataclass(frozen=True)
class Window:
    """The part of a curve to compare. `kind` is last, best, auc or first; `num_events` None means a tenth of them."""

    kind: str = LAST
    num_events: int | None = None

    def __str__(self) -> str:
        return self.kind if self.num_events is None else f"{self.kind}-{self.num_events}"

    @property
    def in_words(self) -> str:
        """Return a description for a legend."""
        events = "a tenth of the log events" if self.num_events is None else f"{self.num_events} log events"
        return {
            LAST: f"mean of the last {events.removeprefix('a ')}",
            FIRST: f"mean of the first {events.removeprefix('a ')}",
            BEST: f"best mean of {events} in a row",
            AREA: "area under the curve per step (mean over the whole run)",
        }[self.kind]

    def of(self, series: Series, *, more_is_better: bool = True) -> float:
        """Return the number, or NaN if the series has no finite value.

        Events that logged null count for the window's width but not in the mean. The area uses the trapezoid rule over
        the finite values, divided by the number of steps they span.
        """
        values = series.values
        is_number = np.isfinite(values)
        if not is_number.any():
            return float("nan")
        width = min(self.num_events or max(1, len(values) // _PART), len(values))
        if self.kind == AREA:
            return _area(series.steps[is_number], values[is_number])
        if self.kind == BEST:
            return _best(values, width, more_is_better)
        kept = values[-width:] if self.kind == LAST else values[:width]
        kept = kept[np.isfinite(kept)]
        return float(kept.mean()) if len(kept) else float("nan")


def parse_window(text: str) -> Window:
    """Return the window for `last`, `last-K`, `best` or `auc`. Raise UserError for anything else."""
    if text in (LAST, BEST, AREA, FIRST):
        return Window(text)
    if (match := _LAST.match(text)) and int(match[1]) > 0:
        return Window(LAST, int(match[1]))
    raise UserError(
        "there is no such window",
        where="--window",
        got=text,
        expected="last (a tenth of the log events), last-K (K log events), first, best or auc",
        hint="--window last-20",
    )


def _area(
    steps: np.ndarray[tuple[int], np.dtype[np.int64]], values: np.ndarray[tuple[int], np.dtype[np.float64]]
) -> float:
    span = float(steps[-1] - steps[0])
    return float(np.trapezoid(values, steps)) / span if span > 0 else float(values.mean())


def _best(values: np.ndarray[tuple[int], np.dtype[np.float64]], width: int, more_is_better: bool) -> float:
    # Divide the sum at the end: twelve twelfths of 1 add up to less than 1, and would miss a bound of 1.
    means = np.convolve(values, np.ones(width), mode="valid") / width
    means = means[np.isfinite(means)]
    if not len(means):
        means = values[np.isfinite(values)]
    return float(means.max() if more_is_better else means.min())
