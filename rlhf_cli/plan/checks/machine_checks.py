"""Check the machine and the folder that a run is started on."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import cast, get_args

from rlhf_cli.config.compose import Composed
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.errors import Prose, RewardError, RunError, UserError
from rlhf_cli.plan.checkpoint_space import space_problems
from rlhf_cli.plan.checks.check_context import CheckContext
from rlhf_cli.plan.devices import compute_capabilities
from rlhf_cli.plan.launch_problems import check_machine, runs_on_cpu
from rlhf_cli.plan.run_plan import Notice
from rlhf_cli.rewards.stack.argument_values import anchored
from rlhf_cli.runs.tracking.tracking_plan import missing_tracker
from rlhf_cli.services.sandbox.running import Isolation, protections

_FIRST_WITH_BF16 = 8.0
_RUNS_CODE = "rlhf_cli.rewards.code:"


def tracker_problems(experiment: Experiment, composed: Composed, context: CheckContext) -> Iterator[UserError]:
    """Yield an error if the tracker is not installed."""
    track = experiment.track
    missing = missing_tracker(track.mode, track.tracker, where=composed.origins.where("track.tracker"))
    if missing is not None:
        yield missing


def sandbox_problems(experiment: Experiment, composed: Composed, context: CheckContext) -> Iterator[UserError]:
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


def precision_notice(experiment: Experiment, composed: Composed, context: CheckContext) -> None:
    """Note that bf16 was requested on a GPU that emulates it slowly."""
    launch = experiment.launch
    if launch.precision != "bf16" or launch.slurm is not None or runs_on_cpu(experiment):
        return
    least = min(compute_capabilities(shutil.which("nvidia-smi")), default=_FIRST_WITH_BF16)
    if least < _FIRST_WITH_BF16:
        text = f"a GPU of compute capability {least:g} has no bf16 and emulates it, slowly; launch.precision=fp16"
        context.notices.append(Notice("precision", text))


def machine_problems(experiment: Experiment, composed: Composed, context: CheckContext) -> Iterator[UserError]:
    """Check `launch` against this machine, and note the result."""
    context.machine = check_machine(experiment, composed.origins)
    context.files |= context.machine.files
    yield from context.machine.problems


def unwritable_problems(experiment: Experiment, composed: Composed, context: CheckContext) -> Iterator[UserError]:
    """Yield an error if the run's folder cannot be made or written to."""
    run = context.folder
    folder = run or Path(experiment.run.root).expanduser().resolve()
    while not folder.exists():
        folder = folder.parent
    if folder.is_dir() and os.access(folder, os.W_OK | os.X_OK):
        return
    yield RunError(
        "the run folder cannot be made" if run is None else "the run folder cannot be written to",
        where="run.root" if run is None else str(folder),
        got=f"{folder} is {'not writable' if folder.is_dir() else 'a file'}",
        expected="a folder that can be written to",
        hint="run.root=SOMEWHERE_ELSE" if run is None else Prose(f"cp -r {folder} SOMEWHERE_ELSE, and resume that"),
    )


def room_problems(experiment: Experiment, composed: Composed, context: CheckContext) -> Iterator[UserError]:
    """Yield an error if not even one checkpoint fits on the disk, or note that not all of them will fit."""
    problems, notice = space_problems(experiment, context.steps, context.folder)
    yield from problems
    if notice is not None:
        context.notices.append(Notice("disk", notice))
