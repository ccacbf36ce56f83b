"""Compare benchmark results with a baseline from the same kind of machine.

    python -m scripts.bench.baselines [--results build/bench.json] [--store]

A time may be 15 % above its baseline, memory 1 % or 2 MB, and a counter must be equal. Times are compared as ratios to
the other side if there is one, memory in MB of ours. Exit code 1, with a line for each measure that is worse; 0 if none
is, or if this kind of machine has no baseline. `--store` makes the results the baseline.
"""

from __future__ import annotations

import argparse
import math
import os
import platform
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from scripts.bench.measures import Kind, Measure, read, write

PLACE = Path(__file__).with_name("baselines")
ALLOWED: dict[Kind, float] = {"time": 0.15, "memory": 0.01}
"""Allowed increase over the baseline as a share of it; counters must be equal."""
_ALLOWED_MB = 2.0
_SAME = 1e-9  # rounding of a quotient written as JSON


@dataclass(frozen=True)
class Regression:
    """A measure that is worse than its baseline; `found` is None if it was not measured."""

    name: str
    baseline: float
    found: float | None
    why: str


def kind_of_machine() -> str:
    """Return the name of this kind of machine: processor model, available cores, version of torch."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists() and (found := re.search(r"^model name\s*:\s*(.+)$", cpuinfo.read_text(), re.M)):
        model = found[1]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    said = f"{model} {cores} cores torch {version('torch').partition('+')[0]}"
    return re.sub(r"[^a-z0-9.]+", "-", said.lower()).strip("-")


def regressions(found: Sequence[Measure], baseline: Sequence[Measure]) -> list[Regression]:
    """Return the measures that are worse than their baseline, in its order; new measures are not compared."""
    by_name = {measure.name: measure for measure in found}
    worse = []
    for measure in baseline:
        if measure.kind == "note":
            continue
        now = by_name.get(measure.name)
        before, value = compared(measure), compared(now) if now is not None else None
        if now is None or value is None:
            worse.append(Regression(measure.name, before, None, "it was not measured"))
        elif math.isnan(value):
            worse.append(Regression(measure.name, before, value, "it is no number"))
        elif measure.kind == "counter":
            if now.pairs != measure.pairs:
                why = f"counted in {now.pairs} pairs, its baseline in {measure.pairs}: they have other draws"
                worse.append(Regression(measure.name, before, value, why))
            elif not math.isclose(value, before, rel_tol=_SAME):
                worse.append(Regression(measure.name, before, value, "a counter has to be the same"))
        elif value > before + max(before * ALLOWED[measure.kind], _ALLOWED_MB if measure.kind == "memory" else 0.0):
            more = f"{value / before - 1:.1%} more; {ALLOWED[measure.kind]:.0%} are allowed of {measure.kind}"
            worse.append(Regression(measure.name, before, value, more))
    return worse


def compared(measure: Measure) -> float:
    """Return the number to compare: MB of ours for memory, else the measure."""
    return measure.ours if measure.kind == "memory" and measure.ours is not None else measure.found


def check(results: Path, baseline: Path) -> int:
    """Print the regressions and return the exit code."""
    found = read(results)
    again = f"python -m scripts.bench.baselines --results {results} --store"
    if not baseline.exists():
        print(f"there is no baseline for this kind of machine, {baseline.stem}: nothing was compared")
        print(f"{again}   # makes these results its baseline")
        return 0
    before = read(baseline)
    worse = regressions(found, before)
    for measure in worse:
        value = "nothing" if measure.found is None else f"{measure.found:.4g}"
        print(f"{measure.name}: baseline {measure.baseline:.4g}, found {value}: {measure.why}")
    new = [
        measure.name for measure in found if measure.kind != "note" and measure.name not in {old.name for old in before}
    ]
    if new:
        print(f"no baseline has {', '.join(new)}")
    compared = sum(measure.kind != "note" for measure in before)
    print(f"{len(worse)} of {compared} measures are worse than in {baseline.name}" + (f"; {again}" if worse else ""))
    return 1 if worse else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path("build/bench.json"))
    parser.add_argument("--baseline", type=Path, default=PLACE / f"{kind_of_machine()}.json")
    parser.add_argument("--store", action="store_true", help="make these results the baseline")
    options = parser.parse_args()
    if not options.results.exists():
        print(f"{options.results} is not there: make bench writes it", file=sys.stderr)
        return 2
    if options.store:
        write(options.baseline, read(options.results))
        print(f"{options.baseline} holds {len(read(options.baseline))} measures now")
        return 0
    return check(options.results, options.baseline)


if __name__ == "__main__":
    sys.exit(main())
