"""Run a job on the nodes that Slurm has given.

On several nodes, torch's elastic agent runs on each, with torchrun's options in the environment (launch/elastic.py).
The first node's agent is a child of the batch process, as in a single-node job: a signal to srun would reach tasks that
have no handler yet.

This is the job's batch process. Slurm warns only this process, with SIGUSR1 (`--signal=B:USR1@`), that the time limit
is near. The signal would kill other processes of the run, such as interpreters that are just starting and helpers of
libraries. This process forwards it to `rlhf resume` once that has a handler. Slurm sends SIGTERM, which cancels a job,
to all processes, so it is not forwarded.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from rlhf_cli.config.schema.launch_sections import Launch
from rlhf_cli.errors import EXIT_CRASH, EXIT_OK, EXIT_PREEMPTED
from rlhf_cli.launch.rollout_server import free_ports
from rlhf_cli.launch.run_states import run_slurm
from rlhf_cli.plan.devices import ON_SLURM_NODE, planned_processes
from rlhf_cli.runs.run_folder import RunFolder, open_run, write_rows
from rlhf_cli.runs.run_status import FAILED, KILLED, PREEMPTED, RUNNING, own_job_id, read_status, update_status

_LEAVE_S = 30.0
"""Seconds for the other nodes to leave, and for the first node to notice that they are gone."""


class OtherNodes:
    """The run on a job's other nodes, if it has several; `reason` is why it cannot continue without them, or None."""

    def __init__(self, folder: RunFolder, num_nodes: int, variables: dict[str, str]) -> None:
        self.reason: str | None = None
        self._srun: subprocess.Popen[bytes] | None = None
        if num_nodes > 1:
            others, cpus = str(num_nodes - 1), os.environ.get("SLURM_CPUS_PER_TASK")
            command = [
                *("srun", "--relative=1", f"--nodes={others}", f"--ntasks={others}", "--ntasks-per-node=1"),
                "--kill-on-bad-exit=0",  # the others end by themselves
                *([f"--cpus-per-task={cpus}"] if cpus else []),  # srun does not inherit this since 22.05
                *node_command(folder),
            ]
            self._srun = subprocess.Popen(command, env={**os.environ, **variables, _IS_HOST: "is_host=0"})
        self._ended_at: float | None = None

    def have_failed(self) -> bool:
        """Return True, once, if they ended without the first node noticing: they never joined it."""
        code = self._srun.poll() if self._srun is not None else None
        if code in (None, EXIT_OK, EXIT_PREEMPTED) or self.reason is not None:
            return False
        self._ended_at = self._ended_at or time.monotonic()
        if time.monotonic() < self._ended_at + _LEAVE_S:
            return False
        self.reason = f"the other nodes did not start: srun ended with code {code}, see the job's log"
        return True

    def close(self) -> None:
        """Wait until they have left, and kill those that do not."""
        if self._srun is None:
            return
        for number in (None, signal.SIGTERM, signal.SIGKILL):
            if number is not None:
                self._srun.send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._srun.wait(_LEAVE_S)
                return


def torchrun_variables(launch: Launch) -> dict[str, str]:
    """Return torchrun's options for each node of this job; the first node holds the store, at a free port.

    Slurm's name of the first node may lead it to itself (127.0.1.1 on Debian): then its address is used.
    """
    name = os.environ.get("SLURMD_NODENAME", "")
    done = run_slurm("scontrol", "--oneliner", "show", "node", name)
    address = re.search(r"\bNodeAddr=(\S+)", done.stdout if done is not None else "")
    hosts = [host for host in (name, address and address[1], socket.gethostname()) if host]
    (port,) = free_ports(1)
    return {
        "PET_NNODES": str(launch.nodes),
        "PET_NPROC_PER_NODE": str(planned_processes(launch) // launch.nodes),
        "PET_RDZV_BACKEND": "c10d",
        "PET_RDZV_ENDPOINT": f"{next(filter(_is_reached, hosts), hosts[0])}:{port}",
        "PET_RDZV_ID": os.environ.get("SLURM_JOB_ID", "rlhf"),
    }


def _is_reached(host: str) -> bool:
    """Return whether other machines reach this one by `host`, as far as this machine's own resolver tells."""
    try:
        socket.create_server((host, 0)).close()
        address = socket.gethostbyname(host)
    except OSError:
        return False
    return not address.startswith("127.") or host in ("localhost", address)


_IS_HOST = "PET_RDZV_CONF"
_POLL_S = 0.2
_TOLD_TIMEOUT_S = 30.0
_MOST_WITHOUT_PROGRESS = 2
SLURM_FOLDER = "slurm"
"""Subfolder of a run or a sweep with Slurm's files."""
_ATTEMPTS = "attempts.jsonl"


class RunInJob:
    """Trains a run folder in the job that calls it. Pickled for the job, it contains only a path."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)
        self._heard = set[int]()

    def __call__(self) -> None:
        """Train the run, requeue the job if it was preempted, and exit with the run's exit code."""
        for number in (signal.SIGUSR1, signal.SIGTERM):  # a warning, and a cancelled job
            signal.signal(number, lambda number, _: self._heard.add(number))
        signal.signal(signal.SIGCONT, signal.SIG_DFL)  # it accompanies every other signal; submitit would log it
        folder, job_id = open_run(Path(self.folder)), own_job_id()
        _wait_until_told(folder, job_id)
        before = read_status(folder)
        if before.state in (RUNNING, KILLED):
            # After a node failure or a preemption by another job, Slurm ends the job silently and starts it again.
            update_status(folder, state=PREEMPTED, reason="Slurm ended the job and started it again")
        started_at = time.time()
        code = self._train(folder)
        after = read_status(folder)
        if code < 0 and after.state in (RUNNING, KILLED):
            likely = ", most likely out of memory" if -code == signal.SIGKILL else ""
            update_status(folder, state=FAILED, reason=f"killed by signal {-code}{likely}")
        attempt = {
            "job_id": job_id,
            "host": os.uname().nodename,
            "started_at": started_at,
            "ended_at": time.time(),
            "step_at_start": before.step,
            "step_at_end": after.step,
            "exit_code": code,
            "was_warned": signal.SIGUSR1 in self._heard,
            "was_cancelled": signal.SIGTERM in self._heard,
        }
        file = folder.path / SLURM_FOLDER / _ATTEMPTS
        attempts = [*_earlier_attempts(file), attempt]
        with contextlib.suppress(OSError):  # a full disk must not keep the job from going on later
            file.parent.mkdir(exist_ok=True)
            write_rows(file, attempts)
        if code == EXIT_PREEMPTED and signal.SIGTERM not in self._heard:
            _go_on_later(folder, attempts)
        if code != EXIT_OK:
            sys.exit(128 - code if code < 0 else code)

    def _train(self, folder: RunFolder) -> int:
        """Return the run's exit code, negative if a signal ended it."""
        launch = Launch.model_validate(folder.read_config()["launch"])
        variables = torchrun_variables(launch) if launch.nodes > 1 else {}
        with (
            subprocess.Popen(
                node_command(folder),
                env={**os.environ, **variables, _IS_HOST: "is_host=1", ON_SLURM_NODE: "1"},
                # The signal must not kill the run before it has a handler.
                preexec_fn=lambda: signal.signal(signal.SIGUSR1, signal.SIG_IGN),
            ) as child,
            contextlib.closing(OtherNodes(folder, launch.nodes, {**variables, ON_SLURM_NODE: "1"})) as others,
        ):
            is_told = False
            while child.poll() is None:
                if signal.SIGUSR1 in self._heard and not is_told and _listens(child.pid, signal.SIGUSR1):
                    child.send_signal(signal.SIGUSR1)
                    is_told = True
                if others.have_failed():
                    child.send_signal(signal.SIGTERM)
                time.sleep(_POLL_S)
        if others.reason is not None and child.returncode == EXIT_PREEMPTED:
            update_status(folder, state=FAILED, reason=others.reason)
            return EXIT_CRASH
        return child.returncode


def node_command(folder: RunFolder) -> list[str]:
    """Return the command that a job runs on its node, or on the first of several."""
    return [sys.executable, "-m", "rlhf_cli", "resume", str(folder.path), "--trust"]


def _wait_until_told(folder: RunFolder, job_id: str | None) -> None:
    """Wait until the submitting process has written the job id; write it here after a timeout."""
    until = time.monotonic() + _TOLD_TIMEOUT_S
    while read_status(folder).job_id != job_id:
        if time.monotonic() > until:
            update_status(folder, job_id=job_id)
            return
        time.sleep(_POLL_S)


def _listens(pid: int, number: signal.Signals) -> bool:
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return False
    caught = next((int(line.split()[1], 16) for line in lines if line.startswith("SigCgt:")), 0)
    return bool(caught >> (number - 1) & 1)


def _earlier_attempts(file: Path) -> list[dict[str, Any]]:
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines() if file.is_file() else []
    found = []
    for line in lines:
        with contextlib.suppress(ValueError):  # cut off by a kill
            found.append(json.loads(line))
    return found


def _go_on_later(folder: RunFolder, attempts: list[dict[str, Any]]) -> None:
    """Requeue the job, unless recent attempts made no progress: it would restart forever."""
    here = shlex.quote(os.path.join(folder.path, ""))
    latest = attempts[-_MOST_WITHOUT_PROGRESS:]
    if len(latest) == _MOST_WITHOUT_PROGRESS and all(one["step_at_end"] <= one["step_at_start"] for one in latest):
        reason = f"not requeued: {len(latest)} jobs in a row made no step; launch.slurm.time is too short for a step"
        update_status(folder, reason=reason)
        print(f"{reason}; rlhf resume {here} once it is longer", flush=True)
        return
    done = run_slurm("scontrol", "requeue", os.environ.get("SLURM_JOB_ID", ""))
    # Slurm ends this job at once, and perhaps the scontrol command with it: a signal is no problem.
    problem = "" if done is None or done.returncode <= 0 else done.stderr.strip()
    if done is None or problem:
        problem = problem or "scontrol did not answer"
        update_status(folder, reason=f"saved, but Slurm did not requeue the job: {problem}")
        print(f"not requeued: {problem}; rlhf resume {here}", flush=True)
        return
    print("saved; Slurm has requeued the job, which will continue by itself", flush=True)
