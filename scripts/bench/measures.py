"""What a benchmark found: a measure with its kind, its goal and the pairs it rests on; as a table and as JSON."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

Kind = Literal["time", "memory", "counter", "note"]
"""What a baseline allows: 15 % of a time, 1 % of memory, nothing of a counter; a note is shown and not compared."""


@dataclass(frozen=True)
class Measure:
    """One figure. `found` is a ratio where `ours` and `other` (medians in `unit`) are told, else the figure itself.

    low, high: the range over `pairs`. goal: `found` is to be no larger; None where there is none.
    """

    name: str
    kind: Kind
    found: float
    goal: float | None = None
    unit: str = ""
    ours: float | None = None
    other: float | None = None
    low: float | None = None
    high: float | None = None
    pairs: int = 1


def of_pairs(
    name: str, kind: Kind, unit: str, pairs: Sequence[tuple[float, float]], goal: float | None = None
) -> Measure:
    """Return the median of the ratios of pairs (ours, the other's), with both medians and the range."""
    ratios = [ours / other for ours, other in pairs]
    ours_s, others_s = zip(*pairs, strict=True)
    return Measure(
        name,
        kind,
        statistics.median(ratios),
        goal,
        unit,
        statistics.median(ours_s),
        statistics.median(others_s),
        min(ratios),
        max(ratios),
        len(ratios),
    )


def say(measures: Sequence[Measure]) -> str:
    """Return a table in Markdown."""
    lines = ["| measure | ours | the other | found | range | pairs | goal | |", "|---|---|---|---|---|---|---|---|"]
    for one in measures:
        sides = [f"{_short(side)} {one.unit}" if side is not None else "" for side in (one.ours, one.other)]
        spread = "" if one.low is None or one.high is None else f"{_short(one.low)}–{_short(one.high)}"
        is_met = "" if one.goal is None else "met" if one.found <= one.goal else "**missed**"
        goal = "" if one.goal is None else _short(one.goal)
        cells = [one.name, *sides, _short(one.found), spread, str(one.pairs), goal, is_met]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _short(number: float) -> str:
    """Return three digits of a ratio, fewer of what is large."""
    if number and abs(number) < 1e-3:
        return f"{number:.1e}"
    return f"{number:.0f}" if abs(number) >= 100 else f"{number:.{max(0, 3 - max(1, _digits(number)))}f}"


def _digits(number: float) -> int:
    return math.floor(math.log10(abs(number))) + 1 if abs(number) >= 1 else 0


def write(file: Path, measures: Sequence[Measure]) -> None:
    """Write them as JSON, a name and what was found."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps([asdict(one) for one in measures], indent=1) + "\n")


def read(file: Path) -> list[Measure]:
    """Return what `write` wrote. Raises OSError or ValueError where the file is none of it."""
    try:
        return [Measure(**one) for one in json.loads(file.read_text())]
    except TypeError as error:
        raise ValueError(f"{file} holds no measures: {error}") from error
