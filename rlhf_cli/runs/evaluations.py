"""Where evaluations of a model lie, and the one figure that is read back: the mean reward. No torch."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from rlhf_cli.errors import RunError
from rlhf_cli.runs.run_folder import RunFolder

HELD_OUT = "held_out"
"""Name of the evaluation on a run's own evaluation rows."""

REWARD_MODEL, POLICY = "reward_model", "policy"

GREEDY, SAMPLED = "greedy", "sampled"
"""The two ways in which a policy answers."""


def run_of(model: Path) -> RunFolder | None:
    """The run whose model this is, None for a model folder that stands alone."""
    folder = RunFolder(model.parent)
    return folder if model == folder.model and folder.config.is_file() else None


def evaluations_of(model: Path) -> Path:
    """`eval/` in the run folder, or in the model's own folder where there is no run around it."""
    run = run_of(model)
    return (run.path if run is not None else model) / "eval"


PICTURE = "history.png"
"""The curves of all evaluations of a training, beside them."""


def in_training(run: RunFolder) -> Path:
    """Where the evaluations lie that were made while the run trained: `step-N.json`."""
    return run.path / "eval" / "training"


def mean_reward(model: str, *, with_eos: bool = False, where: str) -> float:
    """The mean reward `rlhf eval` wrote for a reward model: on its own held-out rows, else in the newest evaluation.

    `with_eos`: of texts that end in the end-of-sequence token, as the reward is to score them. Raises RunError, with
    the command that measures it, when there is none since the model was written.
    """
    folder = Path(model).expanduser().resolve()
    ever = [found for found in map(_read, evaluations_of(folder).glob("*.json")) if _has_mean(found)]
    written_at_s = max((file.stat().st_mtime for file in folder.glob("*.safetensors")), default=0.0)
    ever = [found for found in ever if found.get("with_eos", False) == with_eos]
    written = [found for found in ever if found["time"] >= written_at_s]
    if not written:
        run = run_of(folder)
        typed = run.shown if run is not None else os.path.relpath(folder) if folder.is_dir() else "FOLDER"
        raise RunError(
            "the mean of this reward model has not been measured",
            where=where,
            got=f"offset: auto, and no evaluation in {evaluations_of(folder)}"
            + (" since the model was written" if ever else ""),
            expected="what `rlhf eval` writes, or a number",
            hint=f"rlhf eval {typed}" + ("" if run is not None else " --data FILE") + " --eos" * with_eos,
        )
    best = max(written, key=lambda found: (found["name"] == HELD_OUT, found["time"]))
    return float(best["rewards"]["mean"]["mean"])


def _read(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


def _has_mean(found: dict[str, Any]) -> bool:
    return found.get("kind") == REWARD_MODEL and {"name", "time", "rewards"} <= found.keys()
