"""Read a reward model's mean reward from its evaluations, for `offset: auto`. No torch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from rlhf_cli.errors import RunError
from rlhf_cli.measure.evaluation_files import Heading, read_evaluation
from rlhf_cli.measure.reward_model_results import RewardModelEvaluation
from rlhf_cli.runs.evaluations import HELD_OUT, evaluations_of, run_of
from rlhf_cli.runs.text_endings import trained_with_eos


def mean_reward(model: str, *, with_eos: bool = False, where: str) -> float:
    """Return the mean reward that `rlhf eval` wrote: on the model's own held-out rows, else in the newest evaluation.

    With `with_eos`, use evaluations of texts that end in the end-of-sequence token; it must match how the reward
    scores. If there is none since the model was written, raise RunError with the command that measures it.
    """
    folder = Path(model).expanduser().resolve()
    ever = [(heading, mean) for heading, mean, ended in _means(evaluations_of(folder)) if ended == with_eos]
    written_at_s = max((file.stat().st_mtime for file in folder.glob("*.safetensors")), default=0.0)
    valid = [(heading, mean) for heading, mean in ever if heading.time >= written_at_s]
    if not valid:
        run = run_of(folder)
        typed = run.shown if run is not None else os.path.relpath(folder) if folder.is_dir() else "FOLDER"
        raise RunError(
            "the mean of this reward model has not been measured",
            where=where,
            got=f"offset: auto, and no evaluation in {evaluations_of(folder)}"
            + (" since the model was written" if ever else ""),
            expected="what `rlhf eval` writes, or a number",
            hint=f"rlhf eval {typed}" + ("" if run is not None else " --data FILE") + _option(model, with_eos),
        )
    _, mean = max(valid, key=lambda one: (one[0].name == HELD_OUT, one[0].time))
    return mean


def _option(model: str, with_eos: bool) -> str:
    """Return the `rlhf eval` flag to type if texts should end differently from the training texts, else ''."""
    return "" if (trained_with_eos(model) is True) == with_eos else " --eos" if with_eos else " --no-eos"


def _means(folder: Path) -> Iterator[tuple[Heading, float, bool]]:
    """Yield (heading, mean reward, whether texts ended with the end-of-sequence token) per reward model evaluation."""
    for file in folder.glob("*.json"):
        try:
            evaluation = read_evaluation(file)
        except ValueError:
            continue  # a file of another program
        measured = evaluation.measured
        if isinstance(measured, RewardModelEvaluation) and measured.rewards.mean.mean is not None:
            yield evaluation.heading, measured.rewards.mean.mean, measured.with_eos
