"""The interface of a tracker, which mirrors a run. Each tracker has a file beside this one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, TypeAlias

from rlhf_cli.json_values import JsonTree

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
