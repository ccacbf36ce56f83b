"""Test whether weighting helps a real model: the sum of three rewards, the shipped weights, and a gate, ten seeds each.

usage: python scripts/studies/real_weights.py [--root FOLDER] [--picture OUT.svg] [--jobs N] [--device cpu|cuda]

SmolLM2 learns sums (exp=smollm2_sums, `make real`) in 40 steps. Runs what is missing, resumes what was stopped, and
prints Markdown tables.
"""

from __future__ import annotations

import json
import os
import statistics
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pictures import draw_forest
from real_runs import trained
from seeds import SEEDS, differences, study_arguments, tables, write_numbers

from rlhf_cli.rewards.toy import digits_only
from rlhf_cli.runs.metrics_file import read_metrics, series
from rlhf_cli.runs.run_folder import RunFolder, in_training

EXPERIMENT = "smollm2_sums"
SUM = "sum 1 / 1 / 1"
STEPS = 40
SHORTER = (
    f"trainer.args.max_steps={STEPS}",
    "trainer.args.eval_steps=20",
    "trainer.args.eval_on_start=false",
    "expect=null",
)
CONDITIONS = {
    SUM: ("sum", ("rewards.near.weight=1", "rewards.bare.weight=1")),
    "weights 1 / 0.5 / 0.2": ("weights", ()),
    "gate, then 1 / 1 / 1": (
        "gate",
        ("rewards.near.weight=1", "rewards.bare.weight=1", "primary={by: correct, at_least: 1.0}"),
    ),
}
"""Label -> the prefix of its runs' names, and its words after the experiment's name."""
MEASURES = {
    "greedy": "right, greedy, end",
    "sampled": "right, sampled, end",
    "halfway": "right, sampled, halfway",
    "bare": "bare, sampled, end",
}
"""Measures of the answers to the 55 held-out questions."""


ON = {"cpu": ("launch=cpu",), "cuda": ("launch.device=cuda", "launch.processes=1", "launch.precision=float32")}
"""Words for a device. Both compute in float32, so that runs of a seed can be compared."""


def runs_of_conditions(root: Path, jobs: int, device: str) -> dict[str, list[RunFolder]]:
    """Return the runs of each condition in the order of SEEDS, trained if they are missing."""
    root.mkdir(parents=True, exist_ok=True)
    # Several runs share a GPU; on a CPU a second thread costs more than it gains.
    os.environ |= {"OMP_NUM_THREADS": "1", "RLHF_SHARE_GPUS": "1"}

    def run_of(label: str, seed: int) -> RunFolder:
        name, words = CONDITIONS[label]
        return trained(EXPERIMENT, f"{name}-seed{seed}", (f"seed={seed}", *ON[device], *SHORTER, *words), root)[0]

    with ThreadPoolExecutor(jobs) as pool:
        waiting = {(label, seed): pool.submit(run_of, label, seed) for seed in SEEDS for label in CONDITIONS}
    return {label: [waiting[label, seed].result() for seed in SEEDS] for label in CONDITIONS}


def measure(run: RunFolder) -> dict[str, float]:
    """Return the measures of one finished run.

    The form is read from the answers: `eval_sampled/rewards/bare` leaves out rows behind a closed gate.
    """
    events = read_metrics(run.metrics)
    _, greedy = series(events, "eval_greedy/rewards/correct")
    _, sampled = series(events, "eval_sampled/rewards/correct")
    answers = in_training(run) / f"step-{STEPS}.completions.jsonl"
    rows = [json.loads(line) for line in answers.read_text(encoding="utf-8").split("\n") if line]
    are_bare = digits_only([row["completion"] for row in rows if row["part"] == "sampled"])
    return {"greedy": greedy[-1], "sampled": sampled[-1], "halfway": sampled[0], "bare": statistics.fmean(are_bare)}


def main() -> None:
    """Run what is missing, print the tables, draw the picture."""
    arguments = study_arguments(__doc__ or "", jobs=True, devices=list(ON))
    runs = runs_of_conditions(arguments.root.resolve(), arguments.jobs, arguments.device)
    found = {label: [measure(run) for run in seeds] for label, seeds in runs.items()}
    base_of = {label: SUM for label in CONDITIONS if label != SUM}
    headings = ("correct / near / bare", "minus the sum")
    print(tables(found, base_of, *headings, MEASURES, list(MEASURES)))
    if arguments.picture:
        apart = differences(found, base_of, list(MEASURES))
        panels = {MEASURES[name]: [cells[place] for cells in apart.values()] for place, name in enumerate(MEASURES)}
        draw_forest(arguments.picture, list(base_of), panels, zero="sum")
        write_numbers(arguments.picture, headings[0], found)


if __name__ == "__main__":
    main()
