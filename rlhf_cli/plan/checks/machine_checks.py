"""Checks that the machine has what a run needs: devices, packages, servers, trackers."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import cast, get_args

from rlhf_cli.config.compose import Composed
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.errors import RewardError, UserError
from rlhf_cli.plan.checks.known import Known
from rlhf_cli.plan.devices import compute_capabilities
from rlhf_cli.plan.launch_problems import look_at_machine, runs_on_cpu
from rlhf_cli.plan.run_plan import Notice
from rlhf_cli.sandbox.running import Isolation, protections
from rlhf_cli.stack.argument_values import anchored
from rlhf_cli.tracking.tracking_plan import missing_tracker

_FIRST_WITH_BF16 = 8.0
_RUNS_CODE = "rlhf_cli.rewards.code:"


def tracker_problems(experiment: Experiment, composed: Composed, known: Known) -> Iterator[UserError]:
    """Yield an error if the tracker is not installed."""
    track = experiment.track
    missing = missing_tracker(track.mode, track.tracker, where=composed.origins.where("track.tracker"))
    if missing is not None:
        yield missing


def sandbox_problems(experiment: Experiment, composed: Composed, known: Known) -> Iterator[UserError]:
    """Yield an error if model-written code cannot run here, or not as safely as its reward requires.

    Skipped for Slurm, whose node is another machine. Trying the sandbox takes half a second, only if such a reward
    exists.
    """
    for name, reward in experiment.rewards.items():
        if not str(reward.fn).startswith(_RUNS_CODE) or experiment.launch.slurm is not None:
            continue
        isolation = reward.args.get("isolation", "auto")
        if isolation not in get_args(Isolation):
            continue  # the check of its signature reports this
        try:
            protections(cast(Isolation, isolation))
        except RewardError as error:
            yield anchored(error, args_key=f"rewards.{name}.args", place=composed.origins.where)


def precision_notice(experiment: Experiment, composed: Composed, known: Known) -> Iterator[UserError]:
    """Note that bf16 was requested on a GPU that emulates it slowly."""
    yield from ()
    launch = experiment.launch
    if launch.precision != "bf16" or launch.slurm is not None or runs_on_cpu(experiment):
        return
    least = min(compute_capabilities(shutil.which("nvidia-smi")), default=_FIRST_WITH_BF16)
    if least < _FIRST_WITH_BF16:
        text = f"a GPU of compute capability {least:g} has no bf16 and emulates it, slowly; launch.precision=fp16"
        known.notices.append(Notice("precision", text))


def machine_problems(experiment: Experiment, composed: Composed, known: Known) -> Iterator[UserError]:
    """Check `launch` against this machine, and note the result."""
    known.machine = look_at_machine(experiment, composed.origins)
    known.files |= known.machine.files
    yield from known.machine.problems
