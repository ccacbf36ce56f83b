"""Does bootstrapping help a real model? Four ways to value a cut-off answer, two critics, ten seeds each.

usage: real_truncation.py [--root FOLDER] [--picture OUT.svg] [--jobs N] [--device cpu|cuda]

SmolLM2 learns sums in at most six tokens (exp=smollm2_ppo, `make real`): at first nearly every answer is cut off. 64
steps, 16 rounds. The critic is a second model with a new head, whose values mean nothing; a taught one learns alone for
the first four rounds. Runs what is not there yet, resumes what was stopped, and prints Markdown tables.
"""

from __future__ import annotations

import statistics

from forest import forest
from real_runs import study_of_conditions
from seeds import differences, tables, write_numbers

from rlhf_cli.runs.metrics_file import read_metrics, series
from rlhf_cli.runs.run_folder import RunFolder

EXPERIMENT = "smollm2_ppo"
SHORTER = ("trainer.args.max_steps=64", "trainer.args.eval_on_start=false", "trainer.args.save_strategy=no",
           "critic.share=none", "critic.learning_rate=5e-5", "expect=null")  # fmt: skip
POLICIES = {"none": "none", "eos_penalty": "eos_penalty, 1 subtracted", "bootstrap": "bootstrap, replace",
            "exclude": "exclude"}  # fmt: skip
WORDS = {"bootstrap": ("truncation.mode=replace",)}
CRITICS = {"random": (), "taught": ("critic.warmup_steps=16",)}
BASE = "none"
MEASURES = {
    "greedy": "right, greedy, end",
    "sampled": "right, sampled, end",
    "area": "right, whole run",
    "cut": "cut off, sampled, end",
    "explained": "explained variance, 5th round",
}
"""Of answers to the 55 questions that are never trained on, but the third and the last: of the training."""
COMPARED = ["greedy", "sampled", "area"]


def label(policy: str, critic: str) -> str:
    """Return how a condition is called in the tables."""
    return f"{POLICIES[policy]}; {critic}"


def measure(run: RunFolder) -> dict[str, float]:
    """Return the measures of one finished run."""
    events = read_metrics(run.metrics)
    names = {"greedy": "eval_greedy/rewards/correct", "sampled": "eval_sampled/rewards/correct"}
    found = {name: series(events, metric)[1][-1] for name, metric in names.items()}
    found["area"] = statistics.fmean(series(events, "rewards/correct/mean")[1])
    found["cut"] = series(events, "eval_sampled/truncated")[1][-1]
    found["explained"] = series(events, "ppo/explained_variance")[1][4]
    return found


def main() -> None:
    """Run what is missing, print the tables, draw the picture."""
    conditions = {
        label(policy, critic): (
            f"{policy}-{critic}",
            (*SHORTER, f"truncation={policy}", *WORDS.get(policy, ()), *words),
        )
        for policy in POLICIES
        for critic, words in CRITICS.items()
    }
    arguments, runs = study_of_conditions(__doc__, EXPERIMENT, conditions)
    found = {name: [measure(run) for run in seeds] for name, seeds in runs.items()}
    base_of = {
        label(policy, critic): label(BASE, critic) for policy in POLICIES for critic in CRITICS if policy != BASE
    }
    heading = "policy; critic"
    print(tables(found, base_of, heading, "minus none with that critic", MEASURES, COMPARED))
    if arguments.picture:
        apart = differences(found, base_of, COMPARED)
        panels = {MEASURES[name]: [cells[place] for cells in apart.values()] for place, name in enumerate(COMPARED)}
        arguments.picture.write_text(forest(list(apart), panels, zero="none"), encoding="utf-8")
        write_numbers(arguments.picture, heading, found)


if __name__ == "__main__":
    main()
