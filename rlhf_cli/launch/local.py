"""Trains a frozen run on this machine: one process is this very one, several are a rank each."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rlhf_cli.config.schema.launch_section import Launch
from rlhf_cli.errors import EXIT_CRASH, EXIT_PREEMPTED, GuardStopped, RankFailed, RlhfError, UserError
from rlhf_cli.launch.preemption import preempted
from rlhf_cli.launch.rank_failures import first_failure
from rlhf_cli.launch.ranks import Ended, free_port, rank_commands, started
from rlhf_cli.plan.devices import count_processes
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.running_reward import markers, while_running
from rlhf_cli.runs.status import FAILED, FINISHED, PREEMPTED, read_status, update_status

_WORKER = (sys.executable, "-m", "rlhf_cli.launch.worker")


def run(folder: RunFolder, *, resume: bool, worker: Sequence[str] = _WORKER) -> None:
    """Train the run in `folder` to its end. Raises Preempted, RankFailed, or what the worker raised in this process.

    `worker` are the words that run one rank of several, before the run folder.
    """
    launch = Launch.model_validate(folder.read_config()["launch"])
    processes = count_processes(launch.processes, launch.device)
    if processes == 1:
        _in_this_process(folder, resume=resume)
    else:
        _in_ranks(folder, launch, [*worker, str(folder.path), *(["--resume"] if resume else [])], processes)


def _in_this_process(folder: RunFolder, *, resume: bool) -> None:
    from rlhf_cli.launch.worker import run_rank  # torch comes with it

    try:
        run_rank(folder, resume=resume)
    except KeyboardInterrupt:
        raise preempted(folder) from None


def _in_ranks(folder: RunFolder, launch: Launch, program: Sequence[str], processes: int) -> None:
    for stale in (*folder.path.glob("failure-rank*.json"), *markers(folder.path)):
        stale.unlink()
    commands = rank_commands(program, processes=processes, port=free_port())
    with folder.log.open("a", encoding="utf-8") as log, started(commands, stderr=log, grace_s=launch.grace_s) as ranks:
        ended = ranks.wait()
    is_whole = len(ended) == processes and all(one.code == 0 for one in ended)
    if is_whole and read_status(folder).state == FINISHED:
        return
    if ranks.asked or any(one.code == EXIT_PREEMPTED for one in ended):
        if read_status(folder).state != PREEMPTED:
            late = f"it did not end within {launch.grace_s:g} s of being asked to"
            update_status(folder, state=PREEMPTED, reason=late)
        raise preempted(folder)
    raise _failure(folder, ended)


def _failure(folder: RunFolder, ended: Sequence[Ended]) -> RlhfError:
    """Return the error of the rank that failed first; the others die of its absence a moment later."""
    first = first_failure(folder, ended)
    if first is None:
        reason = f"the ranks ended before the run had{while_running(folder.path)}; see {folder.log}"
        update_status(folder, state=FAILED, reason=reason)
        return RankFailed("training failed", where=str(folder.path), got=reason)
    update_status(folder, state=FAILED, reason=first.message, failing_rank=first.rank)
    if first.exit_code != EXIT_CRASH:
        return UserError(first.message)
    if first.is_by_guard:
        return GuardStopped(first.message)
    if first.traceback:
        print(first.traceback, file=sys.stderr)
        return RankFailed(f"rank {first.rank} failed: {first.message}", where=str(folder.path))
    return RankFailed(f"rank {first.rank} {first.message}", where=str(folder.path))
