"""Hold what benchmarks found against what they found before on a machine of the same kind.

    python -m scripts.bench.baselines [--results build/bench.json] [--store]

A time may be 15 % above its baseline, memory 1 % or 2 MB, and a counter has to be the same. Times are compared as
ratios to the other side where there is one; memory in MB of ours, as the other's varies more. Exit 1 and a line for
each measure that is worse; 0 where none is, and where there is no baseline for this kind of machine, which is said.
`--store` makes what was found the baseline.
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
"""How much more a measure may be than its baseline, as a share of it; a counter nothing, in either direction."""
_ALLOWED_MB = 2.0
_SAME = 1e-9  # of a counter: what writing a quotient as JSON and reading it comes to


@dataclass(frozen=True)
class Regression:
    """A measure that is worse than its baseline; `found` None where it was not measured at all."""

    name: str
    baseline: float
    found: float | None
    why: str


def kind_of_machine() -> str:
    """Return what a baseline holds for: the processor's model, how many cores are ours, the version of torch."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists() and (found := re.search(r"^model name\s*:\s*(.+)$", cpuinfo.read_text(), re.M)):
        model = found[1]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    said = f"{model} {cores} cores torch {version('torch').partition('+')[0]}"
    return re.sub(r"[^a-z0-9.]+", "-", said.lower()).strip("-")


def regressions(found: Sequence[Measure], baseline: Sequence[Measure]) -> list[Regression]:
    """Return what is worse than its baseline, in the order of the baseline; what is new is compared with nothing."""
    by_name = {one.name: one for one in found}
    worse = []
    for one in baseline:
        if one.kind == "note":
            continue
        now = by_name.get(one.name)
        before, value = compared(one), compared(now) if now is not None else None
        if now is None or value is None:
            worse.append(Regression(one.name, before, None, "it was not measured"))
        elif math.isnan(value):
            worse.append(Regression(one.name, before, value, "it is no number"))
        elif one.kind == "counter":
            if now.pairs != one.pairs:
                why = f"counted in {now.pairs} pairs, its baseline in {one.pairs}: they have other draws"
                worse.append(Regression(one.name, before, value, why))
            elif not math.isclose(value, before, rel_tol=_SAME):
                worse.append(Regression(one.name, before, value, "a counter has to be the same"))
        elif value > before + max(before * ALLOWED[one.kind], _ALLOWED_MB if one.kind == "memory" else 0.0):
            more = f"{value / before - 1:.1%} more; {ALLOWED[one.kind]:.0%} are allowed of {one.kind}"
            worse.append(Regression(one.name, before, value, more))
    return worse


def compared(measure: Measure) -> float:
    """Return what of a measure is compared: MB of ours, else what was found."""
    return measure.ours if measure.kind == "memory" and measure.ours is not None else measure.found


def check(results: Path, baseline: Path) -> int:
    """Print what is worse than the baseline and return the exit status."""
    found = read(results)
    again = f"python -m scripts.bench.baselines --results {results} --store"
    if not baseline.exists():
        print(f"there is no baseline for this kind of machine, {baseline.stem}: nothing was compared")
        print(f"{again}   # makes what was found its baseline")
        return 0
    before = read(baseline)
    worse = regressions(found, before)
    for one in worse:
        value = "nothing" if one.found is None else f"{one.found:.4g}"
        print(f"{one.name}: baseline {one.baseline:.4g}, found {value}: {one.why}")
    new = [one.name for one in found if one.kind != "note" and one.name not in {old.name for old in before}]
    if new:
        print(f"no baseline has {', '.join(new)}")
    compared = sum(one.kind != "note" for one in before)
    print(f"{len(worse)} of {compared} measures are worse than in {baseline.name}" + (f"; {again}" if worse else ""))
    return 1 if worse else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path("build/bench.json"))
    parser.add_argument("--baseline", type=Path, default=PLACE / f"{kind_of_machine()}.json")
    parser.add_argument("--store", action="store_true", help="make what was found the baseline")
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
