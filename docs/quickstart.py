"""The quickstart from Python: compose, check, train, compare. Four runs of 60 steps take two minutes on a CPU."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

import rlhf_cli
from rlhf_cli.analysis.comparison.comparison import ComparisonOptions
from rlhf_cli.launch.one_run import run_once
from rlhf_cli.plan.preflight import preflight
from rlhf_cli.plan.prepare import prepare
from rlhf_cli.runs.run_folder import RunFolder

CORRECT = "rewards/correct/mean"


def train(*words: str) -> RunFolder:
    """Train conf/exp/quickstart.yaml with overrides, as `rlhf train +exp=quickstart WORDS` does."""
    prepared = prepare(["+exp=quickstart", *words])  # YAML and words -> a validated Experiment
    plan = preflight(prepared.experiment, prepared.composed, tries_rewards=True)  # data, model, memory; no torch
    return run_once(Console(), prepared, plan)  # freezes the run folder, trains with TRL, saves the model


def main(steps: int = 60, root: Path = Path("runs")) -> None:
    """Train two weights of a reward with two seeds each, and print means and the verdict of `rlhf compare`."""
    folders = [
        train(
            f"rewards.brevity.weight={weight}",
            f"seed={seed}",
            f"trainer.args.max_steps={steps}",
            f"run.root={root}",
            f"run.name=weight-{weight}-seed-{seed}",
            "track=none",
        )
        for weight in (0.0, 0.5)
        for seed in (0, 1)
    ]
    loaded = rlhf_cli.load_runs(*(folder.path for folder in folders), metrics=[CORRECT])
    last = loaded.metrics[CORRECT].unstack("step").iloc[:, -5:].mean(axis=1)
    print(last.groupby(loaded.runs["rewards.brevity.weight"]).agg(["mean", "std"]).round(3))
    for verdict in loaded.compare(ComparisonOptions(on=("correct",))).verdicts:
        print(verdict.text)


if __name__ == "__main__":
    main()
