"""Test whether keeping groups that differ helps, per optimizer step and per generated token, five seeds each.

usage: python scripts/studies/sampling.py toy|smollm2 [--root FOLDER] [--picture OUT.svg] [--jobs N]

The learning rate is constant, so a longer run without a filter shows what as many tokens would have bought.
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

SEEDS = range(5)
ROWS = 64
"""Completions that a step learns from."""
GREEDY = "eval_greedy/rewards/correct"
NONE, AS_MANY = "none", "none, as many tokens as `by: correct`"
FILTERS = {NONE: "", "by: total": "{by: total, tries: 4}", "by: correct": "{by: correct, tries: 4}"}
MEASURES = {"correct": "correct, greedy, held out", "steps": "steps", "tokens": "completion tokens, thousand"}


@dataclass(frozen=True)
class World:
    """An experiment, its words, and the steps of a run with a filter; a run without one takes three times as many."""

    experiment: str
    words: tuple[str, ...]
    steps: int
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
        every=10,
    ),
    "smollm2": World("smollm2_sums", ("trainer.args.eval_on_start=false", "expect=null"), steps=24, every=8),
}


def run_of(world: World, label: str, seed: int, root: Path) -> RunFolder:
    """Return a run with a filter, trained if it is missing."""
    steps = world.steps if FILTERS[label] else 3 * world.steps
    words = [
        f"seed={seed}",
        "launch=cpu",
        *world.words,
        "trainer.args.lr_scheduler_type=constant",
        f"trainer.args.max_steps={steps}",
        "trainer.args.eval_strategy=steps",
        f"trainer.args.eval_steps={world.every}",
        "trainer.args.num_generations_eval=2",
    ]
    if FILTERS[label]:
        words.append(f"sampling.keep_groups={FILTERS[label]}")
    name = f"sampling-{label.removeprefix('by: ')}-seed{seed}"
    return trained(world.experiment, name, words, root)[0]


def curve(run: RunFolder) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return steps, completion tokens drawn up to them, and right greedy answers, at each evaluation."""
    events = read_metrics(run.metrics)
    at, drawn = series(events, "sampling/tokens")
    if not drawn:
        at, lengths = series(events, "completions/mean_length")
        drawn = [ROWS * length for length in lengths]
    steps, right = series(events, GREEDY)
    tokens = np.interp(steps, at, np.cumsum(drawn))
    return np.array(steps), tokens / 1000, np.array(right)


def main() -> None:
    """Run what is missing, print the tables, draw the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("world", choices=WORLDS)
    parser.add_argument("--root", type=Path, default=Path("runs"))
    parser.add_argument("--picture", type=Path, help="write an SVG here, and a CSV of every seed's numbers beside it")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    typed = parser.parse_args()
    world, root = WORLDS[typed.world], typed.root.resolve()
    root.mkdir(parents=True, exist_ok=True)
    os.environ["OMP_NUM_THREADS"] = "1"  # a second thread costs more than it gains
    with ThreadPoolExecutor(typed.jobs) as pool:
        waiting = {(label, seed): pool.submit(run_of, world, label, seed, root) for seed in SEEDS for label in FILTERS}
    curves = {label: [curve(waiting[label, seed].result()) for seed in SEEDS] for label in FILTERS}

    found: dict[str, list[dict[str, float]]] = {}
    for label, runs in curves.items():
        ends = [int(np.searchsorted(steps, world.steps)) for steps, _, _ in runs]
        found[label] = [
            {"correct": float(right[end]), "steps": float(steps[end]), "tokens": float(tokens[end])}
            for (steps, tokens, right), end in zip(runs, ends, strict=True)
        ]
    found[AS_MANY] = [
        {"tokens": spent["tokens"]}
        | {
            name: float(np.interp(spent["tokens"], tokens, values))
            for name, values in (("correct", right), ("steps", steps))
        }
        for (steps, tokens, right), spent in zip(curves[NONE], found["by: correct"], strict=True)
    ]
    base_of = {"by: total": NONE, "by: correct": NONE, AS_MANY: "by: correct"}
    print(tables(found, base_of, "filter", "minus `none` (the last: minus `by: correct`)", MEASURES, ["correct"]))
    if typed.picture:
        panels: dict[str, list[Curve]] = {"over steps": [], "over thousand completion tokens": []}
        for label, runs in curves.items():
            for steps, tokens, right in runs:
                for panel, x in zip(panels.values(), (steps, tokens), strict=True):
                    panel.append(Curve(label, x.tolist(), right.tolist()))
        draw_curves(typed.picture, panels, x_title="", y_title=MEASURES["correct"])
        write_numbers(typed.picture, "filter", found)


if __name__ == "__main__":
    main()
