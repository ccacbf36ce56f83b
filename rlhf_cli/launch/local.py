"""Train a frozen run on this machine: in this process if there is one rank, else one process per rank."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from rlhf_cli.config.environment_references import frozen_experiment
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.config.schema.launch_sections import Launch
from rlhf_cli.errors import EXIT_CRASH, EXIT_PREEMPTED, GuardStopped, RankFailed, RlhfError, UserError
from rlhf_cli.launch.ranks import Ended, RankFailure, first_failure, free_ports, started
from rlhf_cli.launch.rollout_server import rollout_server
from rlhf_cli.launch.stopping import preempted
from rlhf_cli.launch.watchdog import note_dumps, traces
from rlhf_cli.plan.accelerate import accelerate_environment
from rlhf_cli.plan.launch_plan import LaunchPlan, plan_launch
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.run_status import FAILED, FINISHED, PREEMPTED, name_who_asked, read_status, update_status
from rlhf_cli.runs.running_reward import while_running

_STOPPED = (EXIT_PREEMPTED, -signal.SIGTERM, -signal.SIGUSR1)
"""Exit codes of a rank after a request to stop: its own, or the signal if no handler was installed yet."""


def run(folder: RunFolder, console: Console, *, resume: bool) -> None:
    """Train the run in `folder` to its end. Raises Preempted, RankFailed, or the worker's error in this process."""
    experiment = frozen_experiment(folder.read_config())
    plan, launch = _plan(folder, experiment, resume=resume), experiment.launch
    forget_failures(folder)
    if plan.in_this_process:
        _in_this_process(folder, experiment, plan, resume=resume)
        return
    plan = plan.at_ports(*free_ports(3))
    with rollout_server(plan.server, console):
        run_ranks(folder, plan, grace_s=launch.grace_s, hang_timeout_s=launch.hang_timeout_s)


def planned(
    folder: RunFolder, *, resume: bool, node: int = 0, meets_at: str | None = None
) -> tuple[LaunchPlan, Launch]:
    """Return what a run starts on a machine (`node`, `meets_at`: see plan_launch), and its launch settings."""
    experiment = frozen_experiment(folder.read_config())
    return _plan(folder, experiment, resume=resume, node=node, meets_at=meets_at), experiment.launch


def _plan(
    folder: RunFolder, experiment: Experiment, *, resume: bool, node: int = 0, meets_at: str | None = None
) -> LaunchPlan:
    file = experiment.launch.accelerate_config
    env = accelerate_environment(Path(file), where=str(folder.config)) if file is not None else None
    return plan_launch(experiment, folder.path, resume=resume, accelerate_env=env, node=node, meets_at=meets_at)


def _in_this_process(folder: RunFolder, experiment: Experiment, plan: LaunchPlan, *, resume: bool) -> None:
    # With several visible GPUs, one process would train on all of them with DataParallel.
    gpus = {name: value for name, value in plan.ranks[0].env.items() if name == "CUDA_VISIBLE_DEVICES"}
    before = {name: os.environ.get(name) for name in gpus}
    os.environ.update(gpus)
    try:
        from rlhf_cli.launch.worker import run_rank  # imports torch

        run_rank(folder, resume=resume, experiment=experiment)
    except KeyboardInterrupt as interrupt:
        raise preempted(folder, str(interrupt)) from None
    finally:
        for name in gpus:
            del os.environ[name]
        os.environ.update({name: value for name, value in before.items() if value is not None})


def run_ranks(folder: RunFolder, plan: LaunchPlan, *, grace_s: float, hang_timeout_s: float | str = "off") -> None:
    """Run the ranks of a plan with chosen ports. Raises Preempted, or the error of the first rank that failed."""
    with folder.log.open("a", encoding="utf-8") as log, started(plan.ranks, stderr=log, grace_s=grace_s) as ranks:
        ended = ranks.wait()
    note_dumps(folder, ended, hang_timeout_s)
    asked_by = ranks.asked_by if ranks.asked else None
    first = first_failure(folder, ended)
    conclude(folder, ended, first, num_ranks=len(plan.ranks), asked_by=asked_by, grace_s=grace_s)


def forget_failures(folder: RunFolder) -> None:
    """Remove the failure and heartbeat files of an earlier start."""
    for stale in traces(folder):
        stale.unlink()


def conclude(
    folder: RunFolder,
    ended: Sequence[Ended],
    first_failed: RankFailure | None,
    *,
    num_ranks: int,
    asked_by: str | None,
    grace_s: float,
) -> None:
    """Conclude a run whose ranks have ended, in order of their end; `asked_by` is who asked them to stop.

    Raises Preempted, or the error of the first rank that failed.
    """
    is_whole = len(ended) == num_ranks and all(one.code == 0 for one in ended)
    if is_whole and read_status(folder).state == FINISHED:
        return
    # The first end is the cause: a rank that fails while saving is a failure, one that fails because others left is
    # not.
    first = ended[0].code if ended else None
    if first in _STOPPED or (asked_by and first in (0, None)):
        if read_status(folder).state != PREEMPTED:
            late = f"it did not end within {grace_s:g} s of being asked to"
            update_status(folder, state=PREEMPTED, reason=late)
        elif asked_by:
            name_who_asked(folder, asked_by)
        raise preempted(folder, asked_by or read_status(folder).reason)
    raise _failure(folder, first_failed)


def _failure(folder: RunFolder, first: RankFailure | None) -> RlhfError:
    """Return the error of the rank that failed first; the others fail a moment later because it is gone."""
    if first is None:
        reason = f"the ranks ended before the run had{while_running(folder.path)}; see {folder.log}"
        update_status(folder, state=FAILED, reason=reason)
        return RankFailed("training failed", where=str(folder.path), got=reason)
    where = f" on {first.host}" if first.host else ""
    said = f"failed: {first.message}" if first.traceback else first.message
    reason = f"rank {first.rank}{where} {said}" if where else first.message
    update_status(folder, state=FAILED, reason=reason, failing_rank=first.rank)
    if first.exit_code != EXIT_CRASH:
        return UserError(first.message)
    if first.is_by_guard:
        return GuardStopped(first.message)
    if first.traceback:
        print(first.traceback, file=sys.stderr)
    return RankFailed(f"rank {first.rank}{where} {said}", where=str(folder.path))
