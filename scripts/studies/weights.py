"""Does weighting help? The naive sum of three rewards against three weightings and a gate, ten seeds each.

usage: weights.py [--root FOLDER] [--picture OUT.svg]

Runs a sweep over the seeds for each condition, where its folder is not there yet, and prints Markdown tables.
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import dataclass
from pathlib import Path

from forest import forest
from pyarrow import parquet
from seeds import Interval, by_seed, interval, sweep, table, write_numbers

from rlhf_cli.rewards.toy import digits_only
from rlhf_cli.runs.metrics_file import read_metrics, series, start_and_end
from rlhf_cli.runs.run_folder import RunFolder

EXPERIMENT = "study_weights"
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
COMPARISONS = (len(CONDITIONS) - 1) * len(MEASURES)
"""So many differences are in the table: what is bold there has an interval that is corrected for all of them."""
SHARES = {"share_start": "share of `correct`, start", "share_end": "share of `correct`, end"}
"""How much of the advantage comes from `correct`, over the first and the last tenth of the steps."""


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
    return statistics.fmean(digits_only(texts))


def differences(found: dict[str, list[dict[str, float]]], name: str, measured: str) -> Interval:
    """Condition minus naive sum, seed by seed: both began with the same model and saw the same prompts in order."""
    values = [one[measured] - base[measured] for one, base in zip(found[name], found[NAIVE], strict=True)]
    return interval(values, comparisons=COMPARISONS)


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
    panels = {MEASURES[name]: [differences(found, one.name, name) for one in others] for name in ("goal", "area")}
    return forest([one.label for one in others], panels, zero="naive sum")


def main() -> None:
    """Run what is missing, print the tables, draw the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path("runs"), help="where the runs lie")
    parser.add_argument("--picture", type=Path, help="write an SVG here, and a CSV of every seed's numbers beside it")
    arguments = parser.parse_args()
    root = arguments.root.resolve()
    found = {
        condition.name: by_seed(sweep(EXPERIMENT, condition.name, condition.overrides, root), measure)
        for condition in CONDITIONS
    }
    print(report(found))
    if arguments.picture:
        arguments.picture.write_text(picture(found), encoding="utf-8")
        by_label = {one.label: found[one.name] for one in CONDITIONS}
        write_numbers(arguments.picture, "correct / format / brevity", by_label)


if __name__ == "__main__":
    main()
