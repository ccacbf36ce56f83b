"""Define what a tracker is to us, and how metrics are named there."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, TypeAlias, TypeGuard

from rlhf_cli.runs.metrics_file import Event
from rlhf_cli.runs.run_folder import RunFolder, read_json
from rlhf_cli.text.json_values import JsonTree

TrackerName = Literal["wandb", "tensorboard", "trackio", "mlflow"]
Ending = Literal["finished", "failed", "preempted"]
Row: TypeAlias = Mapping[str, object]
"""Maps column -> value; the rows of a table have the same columns."""

STEP = "train/global_step"
"""The x-axis of every metric, as in transformers."""


@dataclass(frozen=True)
class TrackedRun:
    """The description of a run that a tracker gets when it starts or resumes; contains no secrets.

    `name` shows the differences in a sweep; `label` is unique among the runs of a folder. `config` is the resolved
    experiment, nested, with some of its provenance. `goes_on_from` is the checkpoint's step at which training starts, 0
    for none. `recorded_to` is the last step that an earlier attempt logged, 0 for none.
    """

    path: Path
    run_id: str
    name: str
    label: str
    group: str | None
    job_type: str
    project: str
    entity: str | None
    tags: tuple[str, ...]
    notes: str | None
    config: JsonTree
    goes_on_from: int = 0
    recorded_to: int = 0


class Tracker(Protocol):
    """A mirror of one run. Any method may raise; the caller then continues without it."""

    def start(self, run: TrackedRun) -> int:
        """Start a run or resume an existing one. Returns the last step that the tracker has and keeps.

        It is at least `goes_on_from`; steps up to it are not logged again.
        """

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log the metrics of a step; steps never decrease."""

    def table(self, name: str, step: int, rows: Sequence[Row]) -> None:
        """Log at least one row as a table of a step."""

    def finish(self, summary: Mapping[str, float], ending: Ending) -> None:
        """Log the run's summary and close it."""


_EVALUATION = "eval_"
AT_THE_END = ("train_runtime", "train_samples_per_second", "train_steps_per_second", "train_loss", "total_flos")
"""Transformers logs these once, at the end of training; they have no step and keep their names."""


def shown_name(metric: str) -> str:
    """Return `eval/NAME` for `eval_NAME` and `train/NAME` for the rest, as transformers does for every tracker."""
    if metric.startswith(_EVALUATION):
        return f"eval/{metric.removeprefix(_EVALUATION)}"
    return f"train/{metric}"


def shown_metrics(event: Event) -> dict[str, float]:
    """Return the finite numbers of a log event, under their names in a tracker."""
    return {shown_name(name): float(value) for name, value in event.items() if name != "step" and is_number(value)}


def at_the_end(event: Event) -> dict[str, float]:
    """Return the metrics that transformers logs once at the end of training; {} for any other event."""
    return {name: float(value) for name in AT_THE_END if is_number(value := event.get(name))}


def is_number(value: object) -> TypeGuard[int | float]:
    """Return whether a value is a finite number; bools are not numbers."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def flat(tree: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    """Return dotted key -> value of a nested configuration; an empty section is a value."""
    leaves: dict[str, object] = {}
    for name, value in tree.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping) and value:
            leaves |= flat(value, f"{key}.")
        else:
            leaves[key] = value
    return leaves


URI_VARIABLE = "MLFLOW_TRACKING_URI"


def begun_in(folder: RunFolder) -> Path:
    """Return the folder in which the run was started, or the current one if that is gone."""
    cwd = read_json(folder.provenance).get("cwd")
    begun = Path(cwd) if isinstance(cwd, str) else Path.cwd()
    return begun if begun.is_dir() else Path.cwd()


def store_uri(folder: RunFolder) -> str:
    """Return MLFLOW_TRACKING_URI, else `mlflow.db` in the folder in which the run was started."""
    return os.environ.get(URI_VARIABLE) or f"sqlite:///{begun_in(folder) / 'mlflow.db'}"
