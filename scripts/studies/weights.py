"""Does weighting help? The naive sum of three rewards against three weightings and a gate, five seeds each.

usage: weights.py [--root FOLDER] [--picture OUT.svg]

Runs a sweep over the seeds for each condition, where its folder is not there yet, and prints Markdown tables.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pyarrow import parquet

from rlhf_cli.rewards.toy import score_digits_only
from rlhf_cli.runs.folder import RunFolder
from rlhf_cli.runs.metrics import read_metrics, series, start_and_end

EXPERIMENT = "study_weights"
SEEDS = range(5)
STUDENT_T = 2.776
"""The 97.5 % point of Student's t with four degrees of freedom: five seeds."""
NAIVE = "naive"


@dataclass(frozen=True)
class Condition:
    """One way to make one number of the three rewards."""

    name: str
    label: str
    overrides: tuple[str, ...]


def weighting(name: str, correct: float, form: float, brevity: float) -> Condition:
    """A plain weighted sum."""
    weights = {"correct": correct, "format": form, "brevity": brevity}
    label = f"{'naive sum' if name == NAIVE else 'weights'} {correct:g} / {form:g} / {brevity:g}"
    return Condition(name, label, tuple(f"rewards.{reward}.weight={weight}" for reward, weight in weights.items()))


CONDITIONS = (
    weighting(NAIVE, 1.0, 1.0, 1.0),
    weighting("mild", 1.0, 0.5, 0.2),
    weighting("strong", 1.0, 0.1, 0.1),
    weighting("easy", 0.2, 1.0, 1.0),
    Condition("gate", "gate, then 1 / 1 / 1", ("primary={by: correct, at_least: 1.0}",)),
)

MEASURES = {"goal": "goal, end", "area": "goal, whole run", "correct": "correct, end", "format": "format, end"}
"""Name -> heading. `end`: mean over the last tenth of the steps; `whole run`: mean over all, the area under the curve
divided by the steps, which is larger for a run that gets there sooner."""
SHARES = {"share_start": "share of `correct`, start", "share_end": "share of `correct`, end"}
"""How much of the advantage comes from `correct`, over the first and the last tenth of the steps."""


@dataclass(frozen=True)
class Interval:
    """A mean over seeds and half the width of its 95 % interval."""

    mean: float
    half: float

    @property
    def is_clear(self) -> bool:
        """Zero lies outside."""
        return abs(self.mean) > self.half


def interval(values: Sequence[float]) -> Interval:
    """Student's interval for the mean of one value a seed."""
    if len(values) != len(SEEDS):
        raise ValueError(f"{len(values)} values for {len(SEEDS)} seeds: STUDENT_T is for as many as there are seeds")
    return Interval(statistics.fmean(values), STUDENT_T * statistics.stdev(values) / len(values) ** 0.5)


def sweep(condition: Condition, root: Path) -> Path:
    """The folder of the condition's runs, made if it is not there."""
    folder = root / EXPERIMENT / condition.name
    if folder.exists():
        print(f"{folder}: there already, not run again", file=sys.stderr)
        return folder
    seeds = f"seed={','.join(map(str, SEEDS))}"
    words = [f"exp={EXPERIMENT}", *condition.overrides, seeds, "track=none", "launch=cpu"]
    command = [
        sys.executable,
        "-m",
        "rlhf_cli",
        "train",
        "-m",
        *words,
        f"run.root={root}",
        f"run.name={condition.name}",
    ]
    # So small a model is no faster with more threads, and much slower where others want the cores, too.
    subprocess.run(command, check=True, stdout=sys.stderr, env={"OMP_NUM_THREADS": "1", **os.environ})
    return folder


def measure(run: RunFolder) -> dict[str, float]:
    """Every measure of one finished run.

    `primary` gates what is only monitored, too, and a gated reward's raw mean is of the open rows alone. So
    the goal is its effective mean: a closed gate leaves 0, which is what the goal is worth where `correct` is not met.
    The format is read off the completions.
    """
    events = read_metrics(run.metrics)
    curves = {
        "goal": series(events, "rewards/goal/effective_mean")[1],
        "correct": series(events, "rewards/correct/mean")[1],
        "format": [share_of_digits(path) for path in sorted(run.path.glob("completions/*.parquet"))],
    }
    found = {}
    for name, values in curves.items():
        ends = start_and_end(values)
        if ends is None:
            raise SystemExit(f"{run.path}: no {name} was logged; remove {run.path.parent} and try again")
        found[name] = ends[1]
    shares = start_and_end(series(events, "rewards/correct/advantage_share")[1]) or (float("nan"), float("nan"))
    return {**found, "area": statistics.fmean(curves["goal"]), "share_start": shares[0], "share_end": shares[1]}


def share_of_digits(completions: Path) -> float:
    """Of one log event's completions, those that are digits and nothing else."""
    texts = parquet.read_table(completions, columns=["completion"])["completion"].to_pylist()
    return statistics.fmean(score_digits_only(text) for text in texts)


def by_seed(folder: Path) -> list[dict[str, float]]:
    """The measures of a sweep's runs, in the order of SEEDS."""
    runs = {}
    for path in folder.glob("*/config.yaml"):
        run = RunFolder(path.parent)
        runs[run.read_config()["seed"]] = run
    missing = [seed for seed in SEEDS if seed not in runs]
    if missing:
        raise SystemExit(f"{folder}: no run with seed {missing}; remove the folder and try again")
    return [measure(runs[seed]) for seed in SEEDS]


def differences(found: dict[str, list[dict[str, float]]], name: str, measured: str) -> Interval:
    """Condition minus naive sum, seed by seed: both saw the same prompts in the same order."""
    return interval([one[measured] - base[measured] for one, base in zip(found[name], found[NAIVE], strict=True)])


def table(heading: str, columns: dict[str, str], rows: dict[str, list[str]]) -> str:
    """A Markdown table, one row a condition."""
    lines = [[heading, *columns.values()], ["---", *["---:"] * len(columns)]]
    lines += [[label, *cells] for label, cells in rows.items()]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def report(found: dict[str, list[dict[str, float]]]) -> str:
    """Both tables: the means, and the differences to the naive sum; bold where the interval leaves out zero."""
    means: dict[str, list[str]] = {}
    against: dict[str, list[str]] = {}
    for condition in CONDITIONS:
        cells = [interval([one[name] for one in found[condition.name]]) for name in MEASURES | SHARES]
        means[condition.label] = [f"{cell.mean:.3f} ± {cell.half:.3f}" for cell in cells]
        if condition.name != NAIVE:
            cells = [differences(found, condition.name, name) for name in MEASURES]
            texts = [f"{cell.mean:+.3f} ± {cell.half:.3f}" for cell in cells]
            marked = zip(cells, texts, strict=True)
            against[condition.label] = [f"**{text}**" if cell.is_clear else text for cell, text in marked]
    absolute = table("correct / format / brevity", MEASURES | SHARES, means)
    return f"{absolute}\n\n{table('minus the naive sum', MEASURES, against)}"


def picture(found: dict[str, list[dict[str, float]]]) -> str:
    """An SVG: differences to the naive sum with their intervals, for the goal at the end and over the whole run."""
    others = [condition for condition in CONDITIONS if condition.name != NAIVE]
    panels = {name: [differences(found, condition.name, name) for condition in others] for name in ("goal", "area")}
    reach = 1.1 * max(abs(one.mean) + one.half for panel in panels.values() for one in panel)
    left, width, row, top = 190, 260, 34, 50
    bottom = top + row * len(others)
    parts = []
    for number, (name, panel) in enumerate(panels.items()):
        middle = left + width / 2 + number * (width + 40)
        scale = width / 2 / reach
        parts.append(f'<text x="{middle}" y="26" text-anchor="middle" font-weight="bold">{MEASURES[name]}</text>')
        parts.append(f'<line x1="{middle}" x2="{middle}" y1="{top - 12}" y2="{bottom}" stroke="#999"/>')
        ticks = ((-reach / 1.1, "middle"), (0.0, "middle"), (reach / 1.1, "middle"))
        for value, anchor in ticks:
            x, text = middle + value * scale, f"{value:+.2f}" if value else "naive sum"
            parts.append(f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="{anchor}" fill="#666">{text}</text>')
        for index, (condition, one) in enumerate(zip(others, panel, strict=True)):
            y = top + row * index + row / 2 - 6
            low, high = (middle + (one.mean + sign * one.half) * scale for sign in (-1, 1))
            colour = "#c0392b" if one.is_clear and one.mean < 0 else "#1e8449" if one.is_clear else "#555"
            parts.append(f'<line x1="{low:.1f}" x2="{high:.1f}" y1="{y}" y2="{y}" stroke="{colour}" stroke-width="2"/>')
            parts.append(f'<circle cx="{middle + one.mean * scale:.1f}" cy="{y}" r="5" fill="{colour}"/>')
            if number == 0:
                parts.append(f'<text x="12" y="{y + 4}">{condition.label}</text>')
    size = f'width="{left + 2 * width + 60}" height="{bottom + 34}"'
    style = 'font-family="DejaVu Sans, Helvetica, sans-serif" font-size="13"'
    background = '<rect width="100%" height="100%" fill="white"/>'
    body = "\n".join([background, *parts])
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>\n{body}\n</svg>\n'


def main() -> None:
    """Run what is missing, print the tables, draw the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path("runs"), help="where the runs lie")
    parser.add_argument("--picture", type=Path, help="write an SVG here")
    arguments = parser.parse_args()
    found = {condition.name: by_seed(sweep(condition, arguments.root.resolve())) for condition in CONDITIONS}
    print(report(found))
    if arguments.picture:
        arguments.picture.write_text(picture(found), encoding="utf-8")


if __name__ == "__main__":
    main()
