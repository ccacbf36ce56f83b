"""Checks what a run asks of the machine it is started on: devices, packages, servers, trackers."""

from __future__ import annotations

from collections.abc import Iterator

from rlhf_cli.config.compose import Composed
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.errors import UserError
from rlhf_cli.plan.checks.known import Known
from rlhf_cli.plan.launch_problems import look_at_machine
from rlhf_cli.tracking.tracking_plan import missing_tracker


def tracker_problems(experiment: Experiment, composed: Composed, known: Known) -> Iterator[UserError]:
    """Yield that the tracker is not installed."""
    track = experiment.track
    missing = missing_tracker(track.mode, track.tracker, where=composed.origins.where("track.tracker"))
    if missing is not None:
        yield missing


def machine_problems(experiment: Experiment, composed: Composed, known: Known) -> Iterator[UserError]:
    """Hold `launch` against this machine, and note what was found on it."""
    known.machine = look_at_machine(experiment, composed.origins)
    known.files |= known.machine.files
    yield from known.machine.problems
