"""Says what a tracker is to us: a place that mirrors a run. One file beside this one for each of them."""

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
"""Names the x-axis of every metric, as transformers does."""


@dataclass(frozen=True)
class TrackedRun:
    """What a tracker is told of a run when it begins or goes on; no secret is in any of it.

    `name` says what differs in a sweep, `label` is unique among the runs of a folder. `config` is the resolved
    experiment, nested, with a few words of its provenance. `goes_on_from` is the step of the checkpoint that training
    starts at, 0 for none; `recorded_to` the last step that an earlier attempt has logged, 0 for none.
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
    """A mirror of one run. Any method may raise: whoever calls goes on without it."""

    def start(self, run: TrackedRun) -> int:
        """Begin, or go on in the same run where there is one. Returns the last step that it has and keeps.

        That is at least `goes_on_from`: what is logged up to it is not wanted again.
        """

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log metrics of a step; steps never go back."""

    def table(self, name: str, step: int, rows: Sequence[Row]) -> None:
        """Log at least one row as a table that belongs to a step."""

    def finish(self, summary: Mapping[str, float], ending: Ending) -> None:
        """Write what the run came to and let go of it."""
