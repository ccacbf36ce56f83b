"""Test whether weighting helps: the sum of three rewards, three weightings and a gate, ten seeds each.

usage: python scripts/studies/weights.py [--root FOLDER] [--picture OUT.svg]

Runs a sweep over the seeds for each missing condition and prints Markdown tables.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pictures import draw_forest
from pyarrow import parquet
from seeds import by_seed, differences, study_arguments, sweep, tables, write_numbers

from rlhf_cli.rewards.toy import digits_only
from rlhf_cli.runs.metric_arrays import Series, read_columns, start_and_end
from rlhf_cli.runs.run_folder import RunFolder

EXPERIMENT = "study_weights"
NAIVE = "naive"


@dataclass(frozen=True)
class Condition:
    """A way to combine the three rewards."""

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
"""Name -> heading. `end`: mean over the last tenth of the steps; `whole run`: mean over all, larger for a run that
learns sooner.
"""
SHARES = {"share_start": "share of `correct`, start", "share_end": "share of `correct`, end"}
"""Share of `correct` in the advantage, over the first and the last tenth of the steps."""


def measure(run: RunFolder) -> dict[str, float]:
    """Return every measure of one finished run.

    `primary` also gates monitored rewards, and the raw mean of a gated reward covers open rows only. So the goal is its
    effective mean: a closed gate gives 0, which is right if `correct` is not met. The format is read from the
    completions.
    """
    columns, files = read_columns(run.metrics), sorted(run.path.glob("completions/*.parquet"))
    curves = {
        "goal": columns.series("rewards/goal/effective_mean"),
        "correct": columns.series("rewards/correct/mean"),
        "format": Series(np.arange(len(files)), np.array([*map(share_of_digits, files)])),
    }
    found = {}
    for name, values in curves.items():
        ends = start_and_end(values)
        if ends is None:
            raise SystemExit(f"{run.path}: no {name} was logged; remove {run.path.parent} and try again")
        found[name] = ends[1]
    shares = start_and_end(columns.series("rewards/correct/advantage_share")) or (float("nan"), float("nan"))
    area = float(curves["goal"].finite.values.mean())
    return {**found, "area": area, "share_start": shares[0], "share_end": shares[1]}


def share_of_digits(completions: Path) -> float:
    """Return the share of a log event's completions that are digits only."""
    texts = parquet.read_table(completions, columns=["completion"])["completion"].to_pylist()
    return statistics.fmean(digits_only(texts))


def main() -> None:
    """Run what is missing, print the tables, draw the picture."""
    arguments = study_arguments(__doc__)
    root = arguments.root.resolve()
    found = {
        condition.label: by_seed(sweep(EXPERIMENT, condition.name, condition.overrides, root), measure)
        for condition in CONDITIONS
    }
    naive, *others = found
    base_of = dict.fromkeys(others, naive)
    headings = ("correct / format / brevity", "minus the naive sum")
    print(tables(found, base_of, *headings, MEASURES | SHARES, list(MEASURES)))
    if arguments.picture:
        apart = differences(found, base_of, list(MEASURES))
        panels = {
            MEASURES[name]: [dict(zip(MEASURES, cells, strict=True))[name] for cells in apart.values()]
            for name in ("goal", "area")
        }
        draw_forest(arguments.picture, others, panels, zero="naive sum")
        write_numbers(arguments.picture, headings[0], found)


if __name__ == "__main__":
    main()
