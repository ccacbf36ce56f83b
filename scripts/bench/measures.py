"""A measure of a benchmark: its kind, its goal and its pairs, as a table and as JSON; the costs of a whole command."""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

Kind = Literal["time", "memory", "counter", "note"]
"""How a baseline compares it: a time may be 15 % worse, memory 1 %; a counter must be equal; a note is only shown."""


@dataclass(frozen=True)
class Measure:
    """One number: with `ours` and `other` (medians in `unit`) a ratio, else the number itself.

    low, high: the range over `pairs`. goal: the largest good value of `found`, None without a goal.
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
    """Return the median of the ratios of pairs (ours, other), with both medians and the range."""
    ratios = [ours / other for ours, other in pairs]
    ours_s, others_s = (statistics.median(side) for side in zip(*pairs, strict=True))
    return Measure(
        name, kind, statistics.median(ratios), goal, unit, ours_s, others_s, min(ratios), max(ratios), len(ratios)
    )


def table(measures: Sequence[Measure]) -> str:
    """Return a table in Markdown."""
    lines = ["| measure | ours | other | found | range | pairs | goal | |", "|---|---|---|---|---|---|---|---|"]
    for measure in measures:
        sides = [f"{_short(side)} {measure.unit}" if side is not None else "" for side in (measure.ours, measure.other)]
        has_range = measure.low is not None and measure.high is not None
        spread = f"{_short(measure.low)}–{_short(measure.high)}" if has_range else ""
        is_met = "" if measure.goal is None else "met" if measure.found <= measure.goal else "**missed**"
        goal = "" if measure.goal is None else _short(measure.goal)
        cells = [measure.name, *sides, _short(measure.found), spread, str(measure.pairs), goal, is_met]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _short(number: float) -> str:
    """Return three digits of a ratio, fewer decimals of a large number."""
    if number and abs(number) < 1e-3:
        return f"{number:.1e}"
    digits = math.floor(math.log10(abs(number))) + 1 if abs(number) >= 1 else 0
    return f"{number:.0f}" if abs(number) >= 100 else f"{number:.{max(0, 3 - max(1, digits))}f}"


def write(file: Path, measures: Sequence[Measure]) -> None:
    """Write measures as a JSON list with one measure per line."""
    file.parent.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(json.dumps(asdict(measure)) for measure in measures)
    file.write_text(f"[\n{lines}\n]\n")


def read(file: Path) -> list[Measure]:
    """Return the measures of a file. Raise OSError or ValueError if it has none."""
    try:
        return [Measure(**entry) for entry in json.loads(file.read_text())]
    except TypeError as error:
        raise ValueError(f"{file} holds no measures: {error}") from error


@dataclass(frozen=True)
class Cost:
    """CPU seconds of a finished process, and its largest resident size."""

    cpu_s: float
    peak_mb: float


def cost_of(command: Sequence[str], cwd: Path, environment: Mapping[str, str] = os.environ, *, code: int = 0) -> Cost:
    """Run a command and return its costs. Raise SystemExit with its output if it ends with another exit code."""
    with open(cwd / "output.txt", "w+b") as output:  # a pipe would count what is read as memory of the next fork
        child = subprocess.Popen(command, cwd=cwd, env=dict(environment), stdout=output, stderr=output)
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode != code:
            output.seek(0)
            raise SystemExit(f"{output.read().decode()}\n{' '.join(command)} ended with {child.returncode}, not {code}")
    return Cost(usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)
