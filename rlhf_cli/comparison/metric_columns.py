"""Reads metrics.jsonl as columns, fast enough for a thousand runs: one array a metric, and only of those asked for."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import orjson
from numpy.typing import NDArray

from rlhf_cli.errors import RunError
from rlhf_cli.runs.metrics_file import Event
from rlhf_cli.runs.run_folder import unreadable

Wanted = Callable[[str], bool]
"""Says of the name of a metric whether it is to be read."""

_NUMBERS = (int, float)
_PLAIN = frozenset({int, float, type(None)})
_ABSENT = "absent"
_NOT_METRICS = ("step", "time_s")


@dataclass(frozen=True)
class Series:
    """Holds one metric of a run. `steps` and `values` are of equal length, NaN where the run logged null."""

    steps: NDArray[np.int64]
    values: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.values)

    def up_to(self, step: int) -> Series:
        """Return the part of the series that was logged at this step or before."""
        kept = self.steps <= step
        return Series(self.steps[kept], self.values[kept])


NO_SERIES = Series(np.empty(0, dtype=np.int64), np.empty(0))


@dataclass(frozen=True)
class MetricColumns(Mapping[str, Series]):
    """Maps metric -> its series, in the order in which they were first logged. `num_events` counts the whole file."""

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
        """Return the series of a metric, an empty one where it was never logged."""
        return self.by_name.get(name, NO_SERIES)


def read_columns(path: Path, wanted: Wanted | None = None) -> MetricColumns:
    """Read a metrics.jsonl; `wanted` is None for every metric. A file that is not there has none.

    A last line that a kill cut is passed over, and so is a tail of zeros. Raises RunError for any other line that is no
    event, as `runs/metrics_file.read_metrics` does.
    """
    try:
        with path.open("rb") as stream:
            events = _events(stream, path)
    except FileNotFoundError:
        return MetricColumns()
    except OSError as error:
        raise unreadable(path, str(error)) from error
    return columns_of(events, wanted)


def columns_of(events: list[Event], wanted: Wanted | None = None) -> MetricColumns:
    """Return the columns of log events that have a `step` each; what is neither a number nor null is left out."""
    names: dict[str, None] = {}
    for shape in dict.fromkeys(map(tuple, events)):
        names.update(dict.fromkeys(shape))
    all_steps = np.array([event["step"] for event in events], dtype=np.int64)
    shown = [name for name in names if name not in _NOT_METRICS and (wanted is None or wanted(name))]
    by_name = {name: series for name in shown if len(series := _column(events, name, all_steps))}
    return MetricColumns(by_name, len(events), int(all_steps.max()) if len(all_steps) else 0)


def _column(events: Iterable[Event], name: str, all_steps: NDArray[np.int64]) -> Series:
    found = [event.get(name, _ABSENT) for event in events]
    if set(map(type, found)) <= _PLAIN:
        return Series(all_steps, np.array(found, dtype=np.float64))
    kept = [place for place, value in enumerate(found) if type(value) in _PLAIN]
    return Series(all_steps[kept], np.array([found[place] for place in kept], dtype=np.float64))


def _events(lines: Iterable[bytes], path: Path) -> list[Event]:
    """Return the events of all lines but a last one that was cut; a line at a time, which stays in the cache."""
    events: list[Event] = []
    broken: tuple[int, bytes] | None = None
    for number, line in enumerate(lines, start=1):
        event = _event(line)
        if event is not None and broken is None:
            events.append(event)
        elif bare := line.strip(b"\0 \t\r\n"):
            if broken is not None or not bare.startswith(b"{") or bare.endswith(b"}"):
                raise _damaged(path, *(broken or (number, line)))
            broken = number, line  # a last one that a kill cut, if nothing follows
    return events


def _damaged(path: Path, number: int, line: bytes) -> RunError:
    shown = line.rstrip(b"\n")[:40].decode("utf-8", errors="backslashreplace")
    return unreadable(path, f"line {number}: {shown!r}")


def _event(line: bytes) -> Event | None:
    """Return the event of a line, None where it is none. What orjson refuses (NaN, an odd number) json may know."""
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
