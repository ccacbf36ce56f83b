"""A mirror of a logged run in wandb, driven as the worker drives it."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlhf_cli.runs.metrics_file import read_metrics
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.tracking.mirror import Mirror
from rlhf_cli.runs.tracking.tracking_plan import TrackingPlan
from tests.runs.tracking.tracked_runs import Mirrored


@pytest.fixture
def mirrored(place: Path) -> Mirrored:
    """`mirrored(folder)`: mirror what a run folder has logged from a step on; returns what was printed."""

    def call(
        folder: RunFolder, *, goes_on_from: int = 0, recorded_to: int = 0, error: BaseException | None = None
    ) -> list[str]:
        said: list[str] = []
        mirror = Mirror(folder, TrackingPlan("offline"), say=said.append)
        try:
            with mirror.attempt(goes_on_from=goes_on_from, recorded_to=recorded_to):
                for event in read_metrics(folder.metrics):
                    step = event["step"]
                    assert isinstance(step, int)
                    if step > goes_on_from:
                        mirror.event(event)
                        mirror.completions(step)
                if error is not None:
                    raise error
        finally:
            import wandb

            wandb.teardown()  # its file is whole when its service has ended, as it has when a process ends
        return said

    return call
