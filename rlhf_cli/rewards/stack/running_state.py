"""Save a training's running deviations in its checkpoints."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from rlhf_cli.numerics.reward_columns import RunningDeviation

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
