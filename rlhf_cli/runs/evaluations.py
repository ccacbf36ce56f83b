"""Define where evaluations of a model are stored and what their parts are called. Needs no torch."""

from __future__ import annotations

from pathlib import Path

from rlhf_cli.runs.run_folder import RunFolder

HELD_OUT = "held_out"
"""Name of the evaluation on a run's own evaluation rows."""

TRAINING_ROWS = "training_rows"
"""Name of that evaluation if the run was trained on the prompts of all these rows."""

REWARD_MODEL, POLICY = "reward_model", "policy"

GREEDY, SAMPLED = "greedy", "sampled"
"""The two ways a policy generates answers."""


def run_of(model: Path) -> RunFolder | None:
    """Return the run that trained this model, or None for a model folder outside a run."""
    folder = RunFolder(model.parent)
    return folder if model == folder.model and folder.config.is_file() else None


def evaluations_of(model: Path) -> Path:
    """Return `eval/` in the run folder, or in the model's own folder if it belongs to no run."""
    run = run_of(model)
    return (run.path if run is not None else model) / "eval"


PICTURE = "history.png"
"""File name of the plot with all evaluations of a training."""


def in_training(run: RunFolder) -> Path:
    """Return the folder of the evaluations made during training: `step-N.json`."""
    return run.path / "eval" / "training"
