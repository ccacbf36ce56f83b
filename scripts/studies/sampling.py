"""Test whether keeping groups that differ helps, per optimizer step and per generated token.

usage: python scripts/studies/sampling.py toy|smollm2 [--seeds N] [--root FOLDER] [--picture OUT.svg] [--jobs N]

A longer run without a filter shows what as many tokens would have bought.
Runs what is missing, resumes what was stopped, and prints Markdown tables.
"""

from __future__ import annotations

import argparse
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pictures import Curve, draw_curves
from real_runs import trained
from seeds import tables, write_numbers

from rlhf_cli.runs.metrics_file import read_metrics, series
from rlhf_cli.runs.run_folder import RunFolder

ROWS = 64
"""Completions that a step learns from."""
GREEDY = "eval_greedy/rewards/correct"
NONE, LONGER, TOTAL, CORRECT = "none", "none, about as many tokens", "by: total", "by: correct"
FILTERS = {NONE: "", LONGER: "", TOTAL: "{by: total, tries: 4}", CORRECT: "{by: correct, tries: 4}"}
MEASURES = {"correct": "correct, greedy, held out", "steps": "steps", "tokens": "completion tokens, thousand"}


@dataclass(frozen=True)
class World:
    """An experiment, its words, the steps of a run and of the longer one, and those between two evaluations."""

    experiment: str
    words: tuple[str, ...]
    steps: int
    longer: int
    every: int


WORLDS = {
    "toy": World(
        "quickstart",
        (
            "data.args.max_value=40",
            "rewards.brevity.weight=0.5",
            "data.eval.fraction=0.1",
            "trainer.args.per_device_eval_batch_size=200",
            "expect=null",
        ),
        steps=70,
        longer=200,
        every=10,
    ),
    "smollm2": World("smollm2_sums", ("trainer.args.eval_on_start=false", "expect=null"), steps=24, longer=64, every=8),
}


def run_of(world: World, label: str, seed: int, root: Path) -> RunFolder:
    """Return a run with a filter or without one, trained if it is missing."""
    words = [
        f"seed={seed}",
        "launch=cpu",
        *world.words,
        f"trainer.args.max_steps={world.longer if label == LONGER else world.steps}",
        "trainer.args.eval_strategy=steps",
        f"trainer.args.eval_steps={world.every}",
        "trainer.args.num_generations_eval=2",
    ]
    if FILTERS[label]:
        words.append(f"sampling.keep_groups={FILTERS[label]}")
    name = f"sampling-{label.partition(',')[0].removeprefix('by: ')}{'-longer' * (label == LONGER)}-seed{seed}"
    return trained(world.experiment, name, words, root)[0]


def curve(run: RunFolder) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return right greedy answers, steps, and thousand completion tokens drawn up to them, at each evaluation."""
    events = read_metrics(run.metrics)
    at, drawn = series(events, "sampling/tokens")
    if not drawn:
        at, lengths = series(events, "completions/mean_length")
        drawn = [ROWS * length for length in lengths]
    steps, right = series(events, GREEDY)
    tokens = np.interp(steps, at, np.cumsum(drawn))
    return np.array(right), np.array(steps), tokens / 1000


def main() -> None:
    """Run what is missing, print the tables, draw the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("world", choices=WORLDS)
    parser.add_argument("--root", type=Path, default=Path("runs"))
    parser.add_argument("--picture", type=Path, help="write an SVG here, and a CSV of every seed's numbers beside it")
    parser.add_argument("--seeds", type=int, default=5, help="seeds 0 to N - 1 (default 5)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    typed = parser.parse_args()
    world, root, seeds = WORLDS[typed.world], typed.root.resolve(), range(typed.seeds)
    root.mkdir(parents=True, exist_ok=True)
    os.environ["OMP_NUM_THREADS"] = "1"  # a second thread costs more than it gains
    with ThreadPoolExecutor(typed.jobs) as pool:
        waiting = {(label, seed): pool.submit(run_of, world, label, seed, root) for seed in seeds for label in FILTERS}
    curves = {label: [curve(waiting[label, seed].result()) for seed in seeds] for label in FILTERS}

    found = {
        label: [{name: float(values[-1]) for name, values in zip(MEASURES, run, strict=True)} for run in runs]
        for label, runs in curves.items()
    }
    base_of = {TOTAL: NONE, CORRECT: NONE, LONGER: CORRECT}
    print(tables(found, base_of, "filter", f"minus `{NONE}` (the last: minus `{CORRECT}`)", MEASURES, ["correct"]))
    if typed.picture:
        panels: dict[str, list[Curve]] = {"over steps": [], "over thousand completion tokens": []}
        for label, runs in curves.items():
            right, steps, tokens = np.mean(runs, axis=0).tolist()
            for panel, x in zip(panels.values(), (steps, tokens), strict=True):
                panel.append(Curve(label, x, right))
        draw_curves(typed.picture, panels, x_title="", y_title=f"correct, mean of {typed.seeds} seeds")
        write_numbers(typed.picture, "filter", found)


if __name__ == "__main__":
    main()
