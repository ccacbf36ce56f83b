"""Submit frozen runs to Slurm with submitit, explain why sbatch refuses one, and run a job on its nodes.

On several nodes, torch's elastic agent runs on each, with torchrun's options in the environment (launch/elastic.py). On
the first it is a child of the batch process, as on a single node: a signal to srun would reach tasks without a handler.

`RunInJob` is the job's batch process. Slurm warns it alone, with SIGUSR1 (`--signal=B:USR1@`), that the time limit is
near: this would kill interpreters that are just starting and helpers of libraries. So it forwards the signal to `rlhf
resume` once that has a handler. Slurm sends SIGTERM, which cancels a job, to all processes, so it is not forwarded.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from rlhf_cli.config.schema.run_sections import Launch
from rlhf_cli.display.start_panel import show_start
from rlhf_cli.errors import EXIT_CRASH, EXIT_OK, EXIT_PREEMPTED, ConfigError
from rlhf_cli.launch.freeze import create_run, experiment_name
from rlhf_cli.launch.rollout_server import free_ports
from rlhf_cli.launch.run_states import JOB_NAME, SLURM_TIMEOUT_S, run_slurm
from rlhf_cli.plan.devices import ON_SLURM_NODE, planned_processes
from rlhf_cli.plan.prepare import Prepared
from rlhf_cli.plan.run_plan import Plan
from rlhf_cli.process import signal_name
from rlhf_cli.runs.run_folder import RunFolder, open_run, write_rows
from rlhf_cli.runs.run_status import FAILED, KILLED, PREEMPTED, QUEUED, RUNNING, own_job_id, read_status, update_status

if TYPE_CHECKING:
    from submitit import SlurmExecutor

_UNREACHABLE = ("Unable to contact slurm controller", "Could not establish a configuration source", "did not answer")
_NEVER = 1_000_000  # submitit's limit of timeouts per job, disabled because we requeue runs ourselves
_LEAVE_S = 30.0  # seconds for the other nodes to leave, and for the first node to notice that they are gone
_IS_HOST = "PET_RDZV_CONF"
_POLL_S = 0.2
_TOLD_TIMEOUT_S = 30.0
_MOST_WITHOUT_PROGRESS = 2
SLURM_FOLDER = "slurm"  # subfolder of a run or a sweep with Slurm's files
_ATTEMPTS = "attempts.jsonl"


def check_slurm(launch: Launch, *, count: int = 1) -> None:
    """Raise ConfigError if `sbatch --test-only` refuses `count` such jobs, or if submitit or Slurm is missing."""
    with tempfile.TemporaryDirectory() as place:
        script = Path(place) / "job.sh"
        script.write_text(sbatch_script(launch, Path(place), name="rlhf", count=count), encoding="utf-8")
        done = run_slurm("sbatch", "--test-only", str(script))
    if done is None:
        raise refusal(f"sbatch did not answer within {SLURM_TIMEOUT_S:g} s")
    if done.returncode != 0:
        raise refusal(done.stderr)


def check_sweep(launches: Sequence[Launch]) -> None:
    """Raise ConfigError if Slurm refuses one of the arrays that `submit_sweep` would submit for these runs."""
    for launch in {one.model_dump_json(): one for one in launches}.values():
        check_slurm(launch, count=launches.count(launch))


def refusal(said: str) -> ConfigError:
    """Return the error for sbatch's output when it refused a job."""
    for prefix in ("sbatch: ", "error: ", "allocation failure: "):
        said = "\n".join(line.removeprefix(prefix) for line in said.strip().splitlines())
    if any(text.lower() in said.lower() for text in _UNREACHABLE):
        what = "Slurm does not answer on this machine"
        expected = "a login node of a running cluster: `sinfo` lists its partitions"
        return ConfigError(what, where="launch.slurm", got=said, expected=expected, hint="launch=auto")
    expected = "no more than `sinfo -o '%P %c %m %G'` lists: partition, CPUs, MB of memory, GPUs of a node"
    advice = "launch.slurm.partition=NAME, or its other keys; launch.slurm.extra holds options of sbatch"
    return ConfigError("Slurm refuses the job", where="launch.slurm", got=said, expected=expected, advice=advice)


def _submit(console: Console, runs: list[RunFolder], folder: Path, name: str) -> None:
    """Submit frozen runs, several as one array, write their job ids, `123` or `123_4`, and print where to look.

    Files of Slurm go below `folder`. Raise ConfigError if Slurm refuses; the runs are then failed and can be resumed.
    """
    executor = _executor(_launch(runs[0]), folder, f"{JOB_NAME}{name}")
    for run in runs:
        update_status(run, state=QUEUED, reason=None, job_id=None, pid=None, host=None)  # the job waits for its id
    from submitit.core.utils import FailedJobError

    try:
        jobs = executor.submit_array([RunInJob(run.path) for run in runs])
    except FailedJobError as error:
        for run in runs:
            update_status(run, state=FAILED, reason=f"not submitted: {error}")
        raise refusal(str(error)) from None
    for run, job in zip(runs, jobs, strict=True):
        update_status(run, job_id=job.job_id)
    first, shown = jobs[0].job_id, RunFolder(folder).typed
    master, what, logs = first.partition("_")[0], f"job {first}", first
    if len(jobs) > 1:
        what, logs = f"array {master}: {len(jobs)} jobs, {first} to {jobs[-1].job_id}", f"{master}_*"
    lines = f"submitted to Slurm: {what}\n  logs:   {shown}/{SLURM_FOLDER}/{logs}_0_log.out\n"
    lines += f"  watch:  rlhf status {shown}\n  cancel: scancel {master}"
    console.print(lines, soft_wrap=True, markup=False)


def sbatch_script(launch: Launch, folder: Path, *, name: str, count: int = 1) -> str:
    """Return the sbatch script for `count` runs. Raise ConfigError if submitit or Slurm is missing."""
    executor = _executor(launch, folder, name)
    if count > 1:
        executor.parameters["map_count"] = count  # as submitit does for an array
    text: str = executor._make_submission_file_text(executor._submitit_command_str, "0")
    return text


def _executor(launch: Launch, folder: Path, name: str) -> SlurmExecutor:
    slurm = launch.slurm
    assert slurm is not None
    try:
        from submitit import SlurmExecutor
    except ImportError:
        what = "submitit, which submits to Slurm, is not installed"
        raise ConfigError(what, where="launch.slurm", hint="pip install 'rlhf-cli[slurm]'") from None
    if missing := [name for name in ("sbatch", "srun", "squeue", "scontrol") if shutil.which(name) is None]:
        what = f"this machine is no node of a Slurm cluster: there is no {missing[0]}"
        raise ConfigError(what, where="launch.slurm", hint="launch=auto")
    python = f"exec {shlex.quote(sys.executable)}"  # in place of the shell: Slurm's warning has to reach it
    executor = SlurmExecutor(folder / SLURM_FOLDER, max_num_timeout=_NEVER, python=python)
    modules = os.pathsep.join(entry for entry in sys.path if entry)  # of this process, for example a checkout
    asked: dict[str, object] = {"gpus_per_node": slurm.gpus_per_node} if slurm.gpus_per_node else {}
    asked |= {"mem": f"{round(slurm.mem_gb * 1024)}M"} if slurm.mem_gb is not None else {}
    asked |= {"ntasks_per_node": 1} if launch.nodes > 1 else {}
    executor.update_parameters(
        job_name=name,
        partition=slurm.partition,
        account=slurm.account,
        qos=slurm.qos,
        time=slurm.time,
        nodes=launch.nodes,
        cpus_per_task=slurm.cpus_per_task,
        comment=str(folder),
        setup=[*slurm.setup, f"export PYTHONPATH={shlex.quote(modules)}"],
        array_parallelism=slurm.max_parallel,
        wckey=None,
        stderr_to_stdout=True,
        use_srun=False,
        additional_parameters={
            "signal": f"B:USR1@{round(launch.grace_s)}",  # only the batch process
            "requeue": True,
            **{key.lstrip("-"): value for key, value in slurm.extra.items() if value is not False},
        },
        **asked,
    )
    return executor


def submit_once(console: Console, prepared: Prepared, plan: Plan) -> RunFolder:
    """Freeze and submit a checked experiment, and return its folder. Raise RunError or ConfigError if that fails."""
    check_slurm(prepared.experiment.launch)  # before there is a folder
    folder = create_run(prepared.experiment, prepared.composed, files=plan.files)
    show_start(console, prepared.experiment, plan, title=experiment_name(prepared.composed), folder=folder.shown)
    submit_frozen(console, folder)
    return folder


def submit_frozen(console: Console, folder: RunFolder) -> None:
    """Submit a frozen run and print where to look. Raise ConfigError if Slurm refuses the job."""
    _submit(console, [folder], folder.path, folder.label)
    console.print(f"run folder: {folder.shown}", soft_wrap=True)


def submit_sweep(console: Console, runs: list[RunFolder], sweep_dir: Path) -> None:
    """Submit frozen runs as one array per value of `launch`. Raise ConfigError if Slurm refuses an array."""
    arrays: dict[str, list[RunFolder]] = {}
    for run in runs:
        arrays.setdefault(_launch(run).model_dump_json(), []).append(run)
    for of_one_launch in arrays.values():
        _submit(console, of_one_launch, sweep_dir, "/".join(sweep_dir.parts[-2:]))


def _launch(run: RunFolder) -> Launch:
    return Launch.model_validate(run.read_config()["launch"])


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
        for end in (self._srun.poll, self._srun.terminate, self._srun.kill):
            end()
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
        until = time.monotonic() + _TOLD_TIMEOUT_S
        while read_status(folder).job_id != job_id:  # the submitting process has not written it yet
            if time.monotonic() > until:
                update_status(folder, job_id=job_id)
                break
            time.sleep(_POLL_S)
        before = read_status(folder)
        if before.state in (RUNNING, KILLED):  # Slurm restarts jobs silently, after a node's failure
            update_status(folder, state=PREEMPTED, reason="Slurm ended the job and started it again")
        started_at = time.time()
        code = self._train(folder)
        after = read_status(folder)
        if code < 0 and after.state in (RUNNING, KILLED):
            likely = ", most likely out of memory" if -code == signal.SIGKILL else ""
            update_status(folder, state=FAILED, reason=f"killed by {signal_name(-code)}{likely}")
        attempt: dict[str, Any] = {"job_id": job_id, "host": os.uname().nodename, "started_at": started_at}
        attempt |= {"ended_at": time.time(), "step_at_start": before.step, "step_at_end": after.step, "exit_code": code}
        attempt |= {"was_warned": signal.SIGUSR1 in self._heard, "was_cancelled": signal.SIGTERM in self._heard}
        file = folder.path / SLURM_FOLDER / _ATTEMPTS
        attempts = []
        for line in file.read_text(encoding="utf-8", errors="replace").splitlines() if file.is_file() else ():
            with contextlib.suppress(ValueError):  # cut off by a kill
                attempts.append(json.loads(line))
        attempts.append(attempt)
        with contextlib.suppress(OSError):  # a full disk must not keep the job from going on later
            file.parent.mkdir(exist_ok=True)
            write_rows(file, attempts)
        if code == EXIT_PREEMPTED and signal.SIGTERM not in self._heard:
            _go_on_later(folder, attempts)
        if code != EXIT_OK:
            sys.exit(128 - code if code < 0 else code)

    def _train(self, folder: RunFolder) -> int:
        """Return the run's exit code, negative if a signal ended it."""
        launch = _launch(folder)
        variables = torchrun_variables(launch) if launch.nodes > 1 else {}
        with (
            subprocess.Popen(
                node_command(folder),
                env={**os.environ, **variables, _IS_HOST: "is_host=1", ON_SLURM_NODE: "1"},
                preexec_fn=lambda: signal.signal(signal.SIGUSR1, signal.SIG_IGN),  # until it has a handler
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


def _listens(pid: int, number: signal.Signals) -> bool:
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return False
    caught = next((int(line.split()[1], 16) for line in lines if line.startswith("SigCgt:")), 0)
    return bool(caught >> (number - 1) & 1)


def _go_on_later(folder: RunFolder, attempts: list[dict[str, Any]]) -> None:
    """Requeue the job, unless recent attempts made no progress: it would restart forever."""
    here = shlex.quote(os.path.join(folder.path, ""))
    latest = attempts[-_MOST_WITHOUT_PROGRESS:]
    if len(latest) == _MOST_WITHOUT_PROGRESS and all(one["step_at_end"] <= one["step_at_start"] for one in latest):
        problem = f"{len(latest)} jobs in a row made no step; launch.slurm.time is too short for a step"
    else:
        done = run_slurm("scontrol", "requeue", os.environ.get("SLURM_JOB_ID", ""))
        # Slurm ends this job at once, and perhaps the scontrol command with it: a signal is no problem.
        is_refused = done is not None and done.returncode > 0
        problem = "scontrol did not answer" if done is None else done.stderr.strip() * is_refused
    if problem:
        update_status(folder, reason=f"saved, but not requeued: {problem}")
        print(f"not requeued: {problem}; rlhf resume {here}", flush=True)
    else:
        print("saved; Slurm has requeued the job, which will continue by itself", flush=True)
