"""Run a condition once per seed, and print a mean over seeds with its interval."""

from __future__ import annotations

import argparse
import csv
import math
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rlhf_cli.numerics.intervals import student
from rlhf_cli.runs.run_folder import RunFolder

SEEDS = range(10)
"""Seeds of prompts and sampling, and of the starting model (model.build.seed=${seed})."""


@dataclass(frozen=True)
class Interval:
    """A mean over seeds and half the width of its 95 % interval."""

    mean: float
    half: float

    @property
    def is_clear(self) -> bool:
        """Whether the interval excludes zero."""
        return abs(self.mean) > self.half


def interval(values: Sequence[float], *, comparisons: int = 1) -> Interval:
    """Return Student's interval of the mean of one value per seed, with Bonferroni's correction."""
    estimate = student(values, comparisons=comparisons)
    return Interval(estimate.mean, math.inf if estimate.high is None else estimate.high - estimate.mean)


def study_arguments(doc: str, *, jobs: bool = False, devices: Sequence[str] = ()) -> argparse.Namespace:
    """Return the options after the name of a study; `jobs`: the number of sweeps or runs at a time."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path("runs"), help="where the runs lie")
    parser.add_argument("--picture", type=Path, help="write an SVG here, and a CSV of every seed's numbers beside it")
    if jobs:
        parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="this many at a time")
    if devices:
        parser.add_argument("--device", choices=devices, default=devices[0])
    return parser.parse_args()


def sweep(experiment: str, name: str, overrides: Sequence[str], root: Path) -> Path:
    """Return the folder of a condition's runs, one per seed; run what is missing, resume what was stopped."""
    folder = root / experiment / name
    seeds = f"seed={','.join(map(str, SEEDS))}"
    words = [f"exp={experiment}", *overrides, seeds, "track=none", "launch=cpu", f"run.root={root}", f"run.name={name}"]
    asked = ["resume", str(folder)] if folder.exists() else ["train", "-m", *words]
    # More threads do not help such a small model, and slow other jobs.
    environment = {"OMP_NUM_THREADS": "1", **os.environ}
    command = [sys.executable, "-m", "rlhf_cli", *asked]
    subprocess.run(command, check=True, stdout=sys.stderr, env=environment)
    return folder


def by_seed(folder: Path, measure: Callable[[RunFolder], dict[str, float]]) -> list[dict[str, float]]:
    """Return the measures of a sweep's runs, in the order of SEEDS."""
    runs = {}
    for path in folder.glob("*/config.yaml"):
        run = RunFolder(path.parent)
        runs[run.read_config()["seed"]] = run
    missing = [seed for seed in SEEDS if seed not in runs]
    if missing:
        raise SystemExit(f"{folder}: no run with seed {missing}; remove the folder and try again")
    return [measure(runs[seed]) for seed in SEEDS]


Found = Mapping[str, Sequence[Mapping[str, float]]]
"""Label of a condition -> its runs' measures, in the order of SEEDS."""


def write_numbers(picture: Path, heading: str, found: Found) -> None:
    """Write the numbers of all runs as CSV beside the picture: a line per condition and seed, a column per measure.

    `heading` names the column of the conditions.
    """
    measures = list(next(iter(found.values()))[0])
    with picture.with_suffix(".csv").open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow([heading, "seed", *measures])
        for condition, runs in found.items():
            for seed, run in enumerate(runs):
                writer.writerow([condition, seed, *(repr(run[name]) for name in measures)])


def differences(found: Found, base_of: Mapping[str, str], measures: Sequence[str]) -> dict[str, list[Interval]]:
    """Return label -> the difference to the condition's base in every measure, corrected for all of them.

    Differences are paired by seed: both runs began with the same model and saw the same prompts.
    """
    rows: dict[str, list[Interval]] = {}
    for label, base in base_of.items():
        for name in measures:
            values = [run[name] - other[name] for run, other in zip(found[label], found[base], strict=True)]
            rows.setdefault(label, []).append(interval(values, comparisons=len(base_of) * len(measures)))
    return rows


def tables(
    found: Found, base_of: Mapping[str, str], heading: str, against: str, measures: dict[str, str], compared: list[str]
) -> str:
    """Return the means of every condition and the differences to their bases, bold if the interval excludes zero."""
    means = {label: [interval([run[name] for run in runs]) for name in measures] for label, runs in found.items()}
    shown = {label: [f"{cell.mean:.3f} ± {cell.half:.3f}" for cell in cells] for label, cells in means.items()}
    signed = {}
    for label, cells in differences(found, base_of, compared).items():
        texts = [f"{cell.mean:+.3f} ± {cell.half:.3f}" for cell in cells]
        signed[label] = [f"**{text}**" if cell.is_clear else text for cell, text in zip(cells, texts, strict=True)]
    return f"{table(heading, measures, shown)}\n\n{table(against, {name: measures[name] for name in compared}, signed)}"


def table(heading: str, columns: dict[str, str], rows: dict[str, list[str]]) -> str:
    """Return a Markdown table with one row per condition."""
    lines = [[heading, *columns.values()], ["---", *["---:"] * len(columns)]]
    lines += [[label, *cells] for label, cells in rows.items()]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
