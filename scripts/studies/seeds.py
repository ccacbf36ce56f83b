"""What every study here does: run a condition once a seed, and say a mean over seeds with its interval."""

from __future__ import annotations

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
"""Of prompts, sampling and, by model.build.seed=${seed} in the experiments, of the model that a run begins with."""


@dataclass(frozen=True)
class Interval:
    """A mean over seeds and half the width of its 95 % interval."""

    mean: float
    half: float

    @property
    def is_clear(self) -> bool:
        """Zero lies outside."""
        return abs(self.mean) > self.half


def interval(values: Sequence[float], *, comparisons: int = 1) -> Interval:
    """Student's interval for the mean of one value a seed, wider by Bonferroni where it is one of several."""
    estimate = student(values, comparisons=comparisons)
    return Interval(estimate.mean, math.inf if estimate.high is None else estimate.high - estimate.mean)


def sweep(experiment: str, name: str, overrides: Sequence[str], root: Path) -> Path:
    """The folder of a condition's runs, one a seed, made if it is not there."""
    folder = root / experiment / name
    if folder.exists():
        print(f"{folder}: there already, not run again", file=sys.stderr)
        return folder
    seeds = f"seed={','.join(map(str, SEEDS))}"
    words = [f"exp={experiment}", *overrides, seeds, "track=none", "launch=cpu", f"run.root={root}", f"run.name={name}"]
    # So small a model is no faster with more threads, and much slower where others want the cores, too.
    environment = {"OMP_NUM_THREADS": "1", **os.environ}
    command = [sys.executable, "-m", "rlhf_cli", "train", "-m", *words]
    subprocess.run(command, check=True, stdout=sys.stderr, env=environment)
    return folder


def by_seed(folder: Path, measure: Callable[[RunFolder], dict[str, float]]) -> list[dict[str, float]]:
    """The measures of a sweep's runs, in the order of SEEDS."""
    runs = {}
    for path in folder.glob("*/config.yaml"):
        run = RunFolder(path.parent)
        runs[run.read_config()["seed"]] = run
    missing = [seed for seed in SEEDS if seed not in runs]
    if missing:
        raise SystemExit(f"{folder}: no run with seed {missing}; remove the folder and try again")
    return [measure(runs[seed]) for seed in SEEDS]


def write_numbers(picture: Path, heading: str, found: Mapping[str, Sequence[Mapping[str, float]]]) -> None:
    """Write every run's numbers as a CSV beside the picture: a line a condition and seed, a column a measure.

    `heading` names the column of the conditions, which are the keys of `found`; their runs are in the order of SEEDS.
    """
    measures = list(next(iter(found.values()))[0])
    with picture.with_suffix(".csv").open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow([heading, "seed", *measures])
        for condition, runs in found.items():
            for seed, run in zip(SEEDS, runs, strict=True):
                writer.writerow([condition, seed, *(repr(run[name]) for name in measures)])


def table(heading: str, columns: dict[str, str], rows: dict[str, list[str]]) -> str:
    """A Markdown table, one row a condition."""
    lines = [[heading, *columns.values()], ["---", *["---:"] * len(columns)]]
    lines += [[label, *cells] for label, cells in rows.items()]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
