"""Does weighting help a real model? The sum of three rewards against the shipped weights and a gate, ten seeds each.

usage: real_weights.py [--root FOLDER] [--picture OUT.svg] [--jobs N] [--device cpu|cuda]

SmolLM2 learns sums (exp=smollm2_sums, `make real`) in 40 steps. Runs what is not there yet, resumes what was stopped,
and prints Markdown tables.
"""

from __future__ import annotations

from forest import forest
from real_runs import study_of_conditions
from seeds import differences, tables, write_numbers

from rlhf_cli.runs.metrics_file import read_metrics, series
from rlhf_cli.runs.run_folder import RunFolder

EXPERIMENT = "smollm2_sums"
SUM = "sum 1 / 1 / 1"
SHORTER = ("trainer.args.max_steps=40", "trainer.args.eval_steps=20", "trainer.args.eval_on_start=false", "expect=null")
CONDITIONS = {
    SUM: ("sum", ("rewards.near.weight=1", "rewards.bare.weight=1")),
    "weights 1 / 0.5 / 0.2": ("weights", ()),
    "gate, then 1 / 1 / 1": (
        "gate",
        ("rewards.near.weight=1", "rewards.bare.weight=1", "primary={by: correct, at_least: 1.0}"),
    ),
}
"""Label -> how its runs' names begin, and what is typed beside the experiment's name."""
MEASURES = {
    "greedy": "right, greedy, end",
    "sampled": "right, sampled, end",
    "halfway": "right, sampled, halfway",
    "bare": "bare, sampled, end",
}
"""Of answers to the 55 questions that are never trained on."""


def measure(run: RunFolder) -> dict[str, float]:
    """Return the measures of one finished run."""
    events = read_metrics(run.metrics)
    _, greedy = series(events, "eval_greedy/rewards/correct")
    _, sampled = series(events, "eval_sampled/rewards/correct")
    _, bare = series(events, "eval_sampled/rewards/bare")
    return {"greedy": greedy[-1], "sampled": sampled[-1], "halfway": sampled[0], "bare": bare[-1]}


def main() -> None:
    """Run what is missing, print the tables, draw the picture."""
    arguments, runs = study_of_conditions(
        __doc__, EXPERIMENT, {label: (name, (*SHORTER, *words)) for label, (name, words) in CONDITIONS.items()}
    )
    found = {label: [measure(run) for run in seeds] for label, seeds in runs.items()}
    base_of = {label: SUM for label in CONDITIONS if label != SUM}
    headings = ("correct / near / bare", "minus the sum")
    print(tables(found, base_of, *headings, MEASURES, list(MEASURES)))
    if arguments.picture:
        apart = differences(found, base_of, list(MEASURES))
        panels = {MEASURES[name]: [cells[place] for cells in apart.values()] for place, name in enumerate(MEASURES)}
        arguments.picture.write_text(forest(list(base_of), panels, zero="sum"), encoding="utf-8")
        write_numbers(arguments.picture, headings[0], found)


if __name__ == "__main__":
    main()
