"""Read metrics.jsonl as columns, and turn a curve into one number."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import reduce
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import TypeAlias

import numpy as np
import orjson
from numpy.typing import NDArray

from rlhf_cli.errors import RunError, UserError
from rlhf_cli.runs.metrics_file import Event
from rlhf_cli.runs.run_folder import unreadable

Wanted = Callable[[str], bool]
"""Return whether to read the metric of this name."""

_NUMBERS = (int, float)
_PLAIN = frozenset({int, float, type(None)})
_Part: TypeAlias = "tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]"
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


@dataclass(frozen=True)
class MetricColumns(Mapping[str, Series]):
    """A mapping metric -> series, in the order of first occurrence. `num_events` counts the whole file."""

    by_name: Mapping[str, Series] = field(default_factory=dict)
    num_events: int = 0
    last_step: int = 0

    def __getitem__(self, name: str) -> Series:
        return self.by_name[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.by_name)

    def __len__(self) -> int:
        return len(self.by_name)

    def series(self, name: str) -> Series:
        """Return the series of a metric, empty if it was never logged."""
        return self.by_name.get(name, NO_SERIES)

    def weighted(self, weights: Mapping[str, float]) -> Series:
        """Return the weighted sum of several metrics at the steps that logged all of them.

        It is NaN if one of them is.
        """
        parts = [self.series(name) for name in weights]
        if not parts:
            return NO_SERIES
        steps = reduce(np.intersect1d, [one.steps for one in parts])
        values = np.zeros(len(steps))
        for one, weight in zip(parts, weights.values(), strict=True):
            _, places = np.unique(one.steps, return_index=True)
            values += weight * one.values[places[np.isin(one.steps[places], steps)]]
        return Series(steps, values)


def read_columns(path: Path, wanted: Wanted | None = None) -> MetricColumns:
    """Read a metrics.jsonl; `wanted` is None for every metric. A missing file gives no metrics.

    Ignore an incomplete last line of a killed process, and trailing zero bytes. Raise RunError for any other invalid
    line, like `runs/metrics_file.read_metrics`.
    """
    try:
        with path.open("rb") as stream:
            return columns_of(_events(stream, path), wanted)
    except FileNotFoundError:
        return MetricColumns()
    except OSError as error:
        raise unreadable(path, str(error)) from error


def columns_of(events: Iterable[Event], wanted: Wanted | None = None) -> MetricColumns:
    """Return the columns of log events, each with a `step`; ignore values that are neither numbers nor null.

    Most events of a run have the same names in the same order, so the wanted names are looked up once per such shape.
    An event is freed as soon as its numbers are read: a thousand events of a run no longer fit into the processor's
    cache.
    """
    shapes: dict[tuple[str, ...], _Shape] = {}
    count = 0
    for count, event in enumerate(events, start=1):
        names = tuple(event)
        if names not in shapes:
            shapes[names] = _Shape([name for name in names if _is_kept(name, wanted)])
        shapes[names].add(count, event)
    kept = dict.fromkeys(name for shape in shapes.values() for name in shape.names)
    tables = [shape.table() for shape in shapes.values()]
    by_name = {name: series for name in kept if len(series := _joined([one[name] for one in tables if name in one]))}
    last_step = max((max(shape.steps) for shape in shapes.values()), default=0)
    return MetricColumns(by_name, count, last_step)


class _Shape:
    """The events with the same names in the same order: their numbers, steps and wanted values."""

    def __init__(self, names: list[str]) -> None:
        self.names = names
        self.steps: list[int] = []
        self._numbers: list[int] = []
        self._rows: list[tuple[object, ...]] = []
        # itemgetter returns a tuple only for several names, so always include the step.
        self._get = itemgetter("step", *names)

    def add(self, number: int, event: Event) -> None:
        """Add the wanted values of an event."""
        row = self._get(event) if self.names else (event["step"],)
        step = row[0]
        assert isinstance(step, int | float)
        self.steps.append(int(step))
        self._numbers.append(number)
        self._rows.append(row)

    def table(self) -> dict[str, _Part]:
        """Return name -> (event numbers, steps, values)."""
        numbers, steps = np.array(self._numbers), np.array(self.steps)
        if set(map(type, chain.from_iterable(self._rows))) <= _PLAIN:
            values = np.array(self._rows, dtype=np.float64)
            return {name: (numbers, steps, values[:, place]) for place, name in enumerate(self.names, start=1)}
        table: dict[str, _Part] = {}
        for place, name in enumerate(self.names, start=1):
            kept = [row for row, of_event in enumerate(self._rows) if type(of_event[place]) in _PLAIN]
            values = np.array([self._rows[row][place] for row in kept], dtype=np.float64)
            table[name] = numbers[kept], steps[kept], values
        return table


def _joined(parts: list[_Part]) -> Series:
    """Return one series from the parts of several shapes, in the order of the events."""
    if len(parts) == 1:
        return Series(parts[0][1], parts[0][2])
    numbers, steps, values = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.argsort(numbers)
    return Series(steps[order], values[order])


def _is_kept(name: str, wanted: Wanted | None) -> bool:
    return name not in _NOT_METRICS and (wanted is None or wanted(name))


def _events(lines: Iterable[bytes], path: Path) -> Iterator[Event]:
    """Yield the events of all lines except an incomplete last one. Raise RunError for any other invalid line."""
    broken: tuple[int, bytes] | None = None
    for number, line in enumerate(lines, start=1):
        event = _event(line)
        if event is not None and broken is None:
            yield event
        elif bare := line.strip(b"\0 \t\r\n"):
            if broken is not None or not bare.startswith(b"{") or bare.endswith(b"}"):
                raise _damaged(path, *(broken or (number, line)))
            broken = number, line  # incomplete last line of a killed process, if no event follows


def _damaged(path: Path, number: int, line: bytes) -> RunError:
    shown = line.rstrip(b"\n")[:40].decode("utf-8", errors="backslashreplace")
    return unreadable(path, f"line {number}: {shown!r}")


def _event(line: bytes) -> Event | None:
    """Return the event of a line, or None. Fall back to json for values that orjson rejects (NaN, unusual numbers)."""
    try:
        event = orjson.loads(line)
    except ValueError:
        try:
            event = json.loads(line)
        except ValueError:
            return None
    if type(event) is dict and type(event.get("step")) in _NUMBERS and type(event.get("time_s")) in _NUMBERS:
        return event
    return None


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
