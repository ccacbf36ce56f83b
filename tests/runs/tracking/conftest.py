"""What the tests of every tracker begin with: a run that was logged, and a mirror of it driven as the worker does."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlhf_cli.runs.metrics_file import read_metrics
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.tracking.mirror import Timings
from rlhf_cli.runs.tracking.tracked import mirror_of, tracked
from rlhf_cli.runs.tracking.tracker import TrackerName
from rlhf_cli.runs.tracking.tracking_plan import TrackingPlan
from tests.support.mirrored import Mirrored


@pytest.fixture
def mirrored(place: Path) -> Mirrored:
    """`mirrored(folder, tracker)`: mirror what a run folder has logged from a step on; returns what was said."""

    def call(
        folder: RunFolder,
        tracker: TrackerName,
        *,
        goes_on_from: int = 0,
        recorded_to: int = 0,
        timings: Timings = dict,
        error: BaseException | None = None,
    ) -> list[str]:
        said: list[str] = []
        mirror = mirror_of(folder, TrackingPlan("offline", tracker=tracker), say=said.append)
        try:
            with tracked(mirror, folder, timings=timings, goes_on_from=goes_on_from, recorded_to=recorded_to):
                for event in read_metrics(folder.metrics):
                    step = event["step"]
                    assert isinstance(step, int)
                    if step > goes_on_from:
                        mirror.event(event)
                        mirror.completions(step)
                if error is not None:
                    raise error
        finally:
            if tracker == "wandb":
                import wandb

                wandb.teardown()  # its file is whole when its service has ended, as it has when a process ends
        return said

    return call
