"""Read and write what is stored about rewards: the running deviations, and the mean that `offset: auto` subtracts."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rlhf_cli.errors import RunError
from rlhf_cli.numerics.score_scaling import RunningDeviation
from rlhf_cli.runs.run_folder import HELD_OUT, REWARD_MODEL, evaluations_of, run_of
from rlhf_cli.runs.text_endings import trained_with_eos
from rlhf_cli.text.regular_files import read_object


def mean_reward(model: str, *, with_eos: bool = False, where: str) -> float:
    """Return the mean reward that `rlhf eval` wrote: on the model's own held-out rows, else in the newest evaluation.

    With `with_eos`, use evaluations of texts that end in the end-of-sequence token; it must match how the reward
    scores. If there is none since the model was written, raise RunError with the command that measures it.
    """
    folder = Path(model).expanduser().resolve()
    stored = [(key, mean) for key, mean, ended in _stored_means(evaluations_of(folder)) if ended == with_eos]
    written_at_s = max((file.stat().st_mtime for file in folder.glob("*.safetensors")), default=0.0)
    valid = [(key, mean) for key, mean in stored if key[1] >= written_at_s]
    if not valid:
        run = run_of(folder)
        typed = run.shown if run is not None else os.path.relpath(folder) if folder.is_dir() else "FOLDER"
        option = "" if (trained_with_eos(model) is True) == with_eos else " --eos" if with_eos else " --no-eos"
        raise RunError(
            "the mean of this reward model has not been measured",
            where=where,
            got=f"offset: auto, and no evaluation in {evaluations_of(folder)}"
            + (" since the model was written" if stored else ""),
            expected="a file that `rlhf eval` wrote, or a number",
            hint=f"rlhf eval {typed}" + ("" if run is not None else " --data FILE") + option,
        )
    return max(valid)[1]


def _stored_means(folder: Path) -> Iterator[tuple[tuple[bool, float], float, bool]]:
    """Yield ((whether the rows were held out, time), mean, whether texts ended with the end-of-sequence token)."""
    for file in folder.glob("*.json"):
        try:
            content: Any = read_object(file)
            if content["kind"] == REWARD_MODEL:
                rank = (content["name"] == HELD_OUT, float(content["time"]))
                yield rank, float(content["rewards"]["mean"]["mean"]), content.get("with_eos") is True
        except (OSError, ValueError, KeyError, TypeError):
            continue  # a file of another program, or an evaluation without a mean


_FILE = "reward_state.json"


def write_running(folder: Path, running: Mapping[str, RunningDeviation]) -> None:
    """Write the deviations by reward into a checkpoint's folder."""
    state = {name: asdict(deviation) for name, deviation in running.items()}
    (folder / _FILE).write_text(json.dumps({"running": state}), encoding="utf-8")


def read_running(folder: Path) -> dict[str, RunningDeviation] | None:
    """Return the deviations by reward from a checkpoint's folder, None if it has no such file."""
    file = folder / _FILE
    if not file.is_file():
        return None
    state = json.loads(file.read_text(encoding="utf-8"))["running"]
    return {name: RunningDeviation(**deviation) for name, deviation in state.items()}
