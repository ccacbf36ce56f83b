"""Keep the running deviations of a training in a file of its checkpoint."""

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
    """Return the deviations by reward of a checkpoint's folder, None where it holds none."""
    file = folder / _FILE
    if not file.is_file():
        return None
    state = json.loads(file.read_text(encoding="utf-8"))["running"]
    return {name: RunningDeviation(**deviation) for name, deviation in state.items()}
