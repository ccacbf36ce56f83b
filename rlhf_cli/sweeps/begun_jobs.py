"""Prepare a frozen job to be run or resumed, with the same checks as `rlhf resume RUN`."""

from __future__ import annotations

from rlhf_cli.jobs.foreign_code import take_as_ours
from rlhf_cli.jobs.resuming import Resumed, noted
from rlhf_cli.launch.freeze import freeze_again
from rlhf_cli.runs.run_status import CREATED
from rlhf_cli.sweeps.ready_job import ReadyJob


def goes_on(begun: Resumed, name: str, *, take_over: bool, dry_run: bool = False) -> ReadyJob:
    """Return a frozen job, started or not, ready to run. Unless `dry_run`, note allowed changes in its folder."""
    assert begun.plan is not None  # it is None only for a finished run
    if not dry_run:
        if begun.files:
            experiment, composed = begun.prepared.experiment, begun.prepared.composed
            freeze_again(begun.folder, experiment, composed, files=begun.plan.files, note=noted(begun))
        take_as_ours(begun.folder)
    is_begun = begun.status.state != CREATED
    experiment = begun.prepared.experiment
    return ReadyJob(name, begun.folder, experiment, begun.plan, resume=is_begun, take_over=take_over)
