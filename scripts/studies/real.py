"""Train an experiment of a real model with five seeds: held-out rewards before and after, costs, curves.

usage: real.py EXPERIMENT METRIC... [--root FOLDER] [--seeds N] [--words WORD...] [--picture OUT.svg] [--csv OUT.csv]

    python scripts/studies/real.py smollm2_sums eval_greedy/rewards/correct eval_sampled/rewards/correct

Runs what is missing in the folder, resumes stopped runs, and prints a Markdown table. --words are typed after the
experiment's name, with the seed for {seed}. --picture draws the metrics over the steps, training metrics as means of
ten steps, and writes the table as CSV beside the picture; --csv writes only that.
"""

from __future__ import annotations

import argparse
import csv
import statistics
from pathlib import Path

from pictures import Curve, draw_curves
from real_runs import trained
from seeds import interval, table

from rlhf_cli.runs.metrics_file import read_metrics, series

TITLES = {
    "rewards/correct/mean": "in training, mean of 10 steps",
    "eval_greedy/rewards/correct": "held out, greedy",
    "eval_sampled/rewards/correct": "held out, sampled",
}
"""Metric -> title of its panel; other metrics keep their names."""


def running_mean(values: list[float]) -> list[float]:
    """Return the running mean of ten values, because a step has only eight prompts."""
    return [statistics.fmean(values[max(0, place - 9) : place + 1]) for place in range(len(values))]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("experiment")
    parser.add_argument("metrics", nargs="+", metavar="METRIC")
    parser.add_argument("--root", type=Path, default=Path("runs/real"))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--words", nargs="*", default=[], metavar="WORD")
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--csv", type=Path)
    asked = parser.parse_args()
    asked.root.mkdir(parents=True, exist_ok=True)
    panels: dict[str, list[Curve]] = {metric: [] for metric in asked.metrics}
    found: list[dict[str, float]] = []
    for seed in range(asked.seeds):
        words = [word.replace("{seed}", str(seed)) for word in asked.words]
        run, cost = trained(asked.experiment, f"seed{seed}", (f"seed={seed}", *words), asked.root)
        entries = read_metrics(run.metrics)
        numbers: dict[str, float] = {}
        for metric in asked.metrics:
            steps, values = series(entries, metric)
            if not metric.startswith("eval_"):
                values = running_mean(values)
            panels[metric].append(Curve(f"seed {seed}", steps, values))
            numbers |= {f"{metric} before": values[0], f"{metric} after": values[-1]}
        found.append(numbers | cost)
    means = {name: interval([numbers[name] for numbers in found]) for name in found[0]}
    rows = {str(seed): [f"{value:.3g}" for value in numbers.values()] for seed, numbers in enumerate(found)}
    rows["mean"] = [f"{mean.mean:.3g} ± {mean.half:.2g}" for mean in means.values()]
    print(table("seed", {name: name for name in found[0]}, rows))
    if asked.picture is not None:
        titled = {TITLES.get(metric, metric): curves for metric, curves in panels.items()}
        y_title = "share of answers that are right" if panels.keys() <= TITLES.keys() else None
        draw_curves(asked.picture, titled, x_title="optimizer steps", y_title=y_title)
    numbers_file = asked.csv or (asked.picture and asked.picture.with_suffix(".csv"))
    if numbers_file is not None:
        with numbers_file.open("w", encoding="utf-8", newline="") as stream:
            writer = csv.writer(stream, lineterminator="\n")
            writer.writerow(["seed", *found[0]])
            writer.writerows([seed, *map(repr, numbers.values())] for seed, numbers in enumerate(found))


if __name__ == "__main__":
    main()
