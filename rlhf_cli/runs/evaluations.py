"""Says where evaluations of a model lie, and what their parts are called. No torch."""

from __future__ import annotations

from pathlib import Path

from rlhf_cli.runs.run_folder import RunFolder

HELD_OUT = "held_out"
"""Names the evaluation on a run's own evaluation rows."""

TRAINING_ROWS = "training_rows"
"""Names it where all these rows have prompts that the run was trained on."""

REWARD_MODEL, POLICY = "reward_model", "policy"

GREEDY, SAMPLED = "greedy", "sampled"
"""A policy answers in these two ways."""


def run_of(model: Path) -> RunFolder | None:
    """Return the run whose model this is, None for a model folder that stands alone."""
    folder = RunFolder(model.parent)
    return folder if model == folder.model and folder.config.is_file() else None


def evaluations_of(model: Path) -> Path:
    """Return `eval/` in the run folder, or in the model's own folder where there is no run around it."""
    run = run_of(model)
    return (run.path if run is not None else model) / "eval"


PICTURE = "history.png"
"""Names the file with the curves of all evaluations of a training, beside them."""


def in_training(run: RunFolder) -> Path:
    """Return the folder of the evaluations that were made while the run trained: `step-N.json`."""
    return run.path / "eval" / "training"
