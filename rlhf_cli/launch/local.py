"""Starts a frozen run on this machine: one process is this very one, several go through accelerate."""

from __future__ import annotations

import os
import subprocess
import sys
from operator import itemgetter

from rlhf_cli.config.environment_references import resolved_references
from rlhf_cli.config.schema.launch_section import Launch
from rlhf_cli.errors import EXIT_CRASH, GuardStopped, Preempted, RankFailed, RlhfError, UserError
from rlhf_cli.plan.devices import count_processes
from rlhf_cli.runs.run_folder import RunFolder, read_json
from rlhf_cli.runs.running_reward import markers, while_running
from rlhf_cli.runs.status import FAILED, FINISHED, PREEMPTED, read_status, update_status


def run(folder: RunFolder, *, resume: bool) -> None:
    """Train the run in `folder` to its end. Raises Preempted, RankFailed, or what the worker raised in this process."""
    launch = Launch.model_validate(resolved_references(folder.read_config())["launch"])
    processes = count_processes(launch.processes, launch.device)
    if processes == 1:
        _in_this_process(folder, resume=resume)
    else:
        _through_accelerate(folder, processes, resume=resume)


def _in_this_process(folder: RunFolder, *, resume: bool) -> None:
    from rlhf_cli.launch.worker import run_rank  # torch comes with it

    try:
        run_rank(folder, resume=resume)
    except KeyboardInterrupt:
        raise _preempted(folder) from None


def _through_accelerate(folder: RunFolder, processes: int, *, resume: bool) -> None:
    # `--multi_gpu` also where there is none: `--cpu --num_processes N` silently runs one process.
    command = [
        *(sys.executable, "-m", "accelerate.commands.launch"),
        *("--multi_gpu", "--num_processes", str(processes), "--num_machines", "1"),
        *("--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0"),
        *("-m", "rlhf_cli.launch.worker", str(folder.path)),
        *(["--resume"] if resume else []),
    ]
    for stale in (*folder.path.glob("failure-rank*.json"), *markers(folder.path)):
        stale.unlink()
    # A run from a checkout has the package on sys.path only because of the folder it was started in.
    python_path = os.pathsep.join(entry for entry in sys.path if entry)
    environment = {**os.environ, "PYTHONPATH": python_path, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
    with folder.log.open("a", encoding="utf-8") as log:
        launcher = subprocess.Popen(command, stderr=log, env=environment)
        try:
            code = launcher.wait()
        except KeyboardInterrupt:
            launcher.wait()
            update_status(folder, state=PREEMPTED, reason="interrupted at the keyboard")
            raise _preempted(folder) from None
    if code != 0 or read_status(folder).state != FINISHED:
        raise _failure(folder, code)


def _failure(folder: RunFolder, code: int) -> RlhfError:
    """Return the error of the rank that failed first; the others die of its absence a moment later."""
    failures = sorted((read_json(file) for file in folder.path.glob("failure-rank*.json")), key=itemgetter("time"))
    if not failures:
        reason = (
            f"the launcher ended with code {code} and no rank said why{while_running(folder.path)}; see {folder.log}"
        )
        update_status(folder, state=FAILED, reason=reason)
        return RankFailed("training failed", where=str(folder.path), got=reason)
    first = failures[0]
    update_status(folder, state=FAILED, reason=first["message"], failing_rank=first["rank"])
    if first["exit_code"] != EXIT_CRASH:
        return UserError(str(first["message"]))
    if first.get("is_by_guard"):
        return GuardStopped(str(first["message"]))
    print(first["traceback"], file=sys.stderr)
    # Of the ranks that said nothing one may be the cause: the others fail of its absence.
    spoke = [rank for failure in failures if isinstance(rank := failure["rank"], int)]
    silent = while_running(folder.path, besides=spoke)
    return RankFailed(f"rank {first['rank']} failed{silent}: {first['message']}", where=str(folder.path))


def _preempted(folder: RunFolder) -> Preempted:
    checkpoint = folder.last_checkpoint()
    return Preempted(
        "the run was interrupted",
        where=str(folder.path),
        got=f"last checkpoint: {checkpoint.name}" if checkpoint else "no checkpoint yet",
        hint=f"rlhf resume {os.path.relpath(folder.path)}",
    )
