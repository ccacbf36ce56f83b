"""Submit frozen runs to Slurm and explain why sbatch refuses one.

submitit (https://github.com/facebookincubator/submitit) writes the script, pickles the job's function and creates
arrays.
"""

from __future__ import annotations

import os
import shlex
import shutil
import socket
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from rlhf_cli.config.schema.launch_sections import Launch, Slurm
from rlhf_cli.errors import ConfigError, Prose
from rlhf_cli.launch.slurm_node import SLURM_FOLDER, RunInJob
from rlhf_cli.launch.slurm_queue import SLURM_TIMEOUT_S, run_slurm
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.run_status import FAILED, QUEUED, update_status
from rlhf_cli.text.suggest import nearest

if TYPE_CHECKING:
    from submitit import SlurmExecutor

_UNREACHABLE = (
    "Unable to contact slurm controller",
    "Could not establish a configuration source",
    "Connection refused",
    "did not answer",
)
_ABOUT = {
    "invalid partition": "partition",
    "account": "account",
    "qos": "qos",
    "time limit": "time",
    "time specification": "time",
    "generic resource": "gpus_per_node",
    "gres": "gpus_per_node",
    "memory": "mem_gb",
    "cpu count": "cpus_per_task",
    "node configuration": "",
}
"""Maps text in sbatch's message -> the key of launch.slurm it concerns, '' for the requested size."""
_SIZES = ("gpus_per_node", "cpus_per_task", "mem_gb")


def refusal(said: str, slurm: Slurm) -> ConfigError:
    """Return the error for sbatch's output when it refused a job of `slurm`."""
    said = said.strip().removeprefix("sbatch: ").removeprefix("error: ").removeprefix("allocation failure: ")
    said = "\n".join(line.removeprefix("sbatch: ").removeprefix("error: ") for line in said.splitlines())
    if any(text.lower() in said.lower() for text in _UNREACHABLE):
        return ConfigError(
            "Slurm does not answer on this machine",
            where="launch.slurm",
            got=said,
            expected="a login node of a cluster that is up: `sinfo` lists its partitions",
            hint="launch=auto",
        )
    about = next((key for text, key in _ABOUT.items() if text in said.lower()), None)
    if about == "partition":
        return _no_such_partition(said, slurm.partition)
    if about == "":
        asked = [f"{name}={value}" for name in _SIZES if (value := getattr(slurm, name)) is not None]
        return ConfigError(
            "no node of Slurm is large enough for the job",
            where="launch.slurm",
            got=f"{said}\n{', '.join(asked)}" if asked else said,
            expected="no more than `sinfo -o '%P %c %m %G'` lists: partition, CPUs, MB of memory, GPUs of a node",
            hint=f"launch.slurm.{asked[0].partition('=')[0]}=LESS" if asked else "launch.slurm.partition=ANOTHER",
        )
    key = f"launch.slurm.{about}" if about else "launch.slurm"
    value = getattr(slurm, about) if about else None
    return ConfigError(
        "Slurm does not take the job",
        where=key,
        got=said if value is None else f"{value}\n{said}",
        hint=f"{key}=..."
        if about
        else Prose("sbatch's own words are above; launch.slurm.extra holds options of sbatch"),
    )


def _no_such_partition(said: str, partition: str | None) -> ConfigError:
    there = _partitions()
    close = nearest(partition or "", there) or next(iter(there), "NAME")
    return ConfigError(
        "Slurm has no such partition",
        where="launch.slurm.partition",
        got=partition or said,
        expected=f"one of {', '.join(there)}" if there else None,
        hint=f"launch.slurm.partition={close}",
    )


def _partitions() -> list[str]:
    done = run_slurm("sinfo", "--noheader", "--format=%R")
    return sorted(set(done.stdout.split())) if done is not None else []


_OF_ONE_MACHINE = {"btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "ramfs", "tmpfs", "vfat", "xfs", "zfs"}
_MOUNTS = Path("/proc/mounts")


def refuse_own_folder(root: Path, slurm: Slurm) -> None:
    """Raise ConfigError if `root` is on a local file system and jobs would run on other machines.

    A machine may export a local file system, so `launch.slurm.shared_folder=true` skips the check.
    """
    if slurm.shared_folder:
        return
    mount, kind = file_system(root)
    if kind not in _OF_ONE_MACHINE:
        return
    others = [node for node in _nodes(slurm) if node != _here()]
    if others:
        raise ConfigError(
            "the nodes of Slurm would not find the run: its folder is on this machine alone",
            where="run.root",
            got=f"{root}, on {mount} ({kind}); jobs may run on {_few(others)}",
            expected="a folder that every node sees under the same path (NFS, Lustre, GPFS, ...)",
            hint=Prose("run.root=/a/shared/folder, or launch.slurm.shared_folder=true where the nodes do see it"),
        )


def file_system(folder: Path, mounts: Path = _MOUNTS) -> tuple[str, str]:
    """Return (mount point, type) of the file system of a folder, which need not exist; ('/', '') if unknown."""
    wanted = folder.expanduser().resolve()
    best = ("/", "")
    try:
        lines = mounts.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return best
    for line in lines:
        _, place, kind, *_ = line.split(" ")
        mount = Path(place.replace("\\040", " "))
        # Of two mounts at one path, the later one hides the earlier.
        if wanted.is_relative_to(mount) and len(str(mount)) >= len(best[0]):
            best = (str(mount), kind)
    return best


def _nodes(slurm: Slurm) -> list[str]:
    """Return the names of the nodes that a job could run on, or [] if Slurm does not answer."""
    partition = ["--partition", slurm.partition] if slurm.partition else []
    done = run_slurm("sinfo", "--noheader", "--Node", "--format=%N", *partition)
    return sorted({line.partition(".")[0] for line in done.stdout.split()}) if done is not None else []


def _here() -> str:
    return socket.gethostname().partition(".")[0]


def _few(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


_NEVER = 1_000_000
"""submitit's limit of timeouts per job, disabled because we requeue runs ourselves."""


def check_slurm(launch: Launch, root: Path, *, count: int = 1) -> None:
    """Refuse a job that cannot be submitted, before a folder is created, with `sbatch --test-only`.

    `root` is the folder for the runs, `count` the number of jobs. Raises ConfigError if submitit or Slurm is missing,
    if the nodes would not see the folder, or if Slurm refuses the job.
    """
    _need_slurm()
    slurm = _section(launch)
    refuse_own_folder(root, slurm)
    with tempfile.TemporaryDirectory() as place:
        script = Path(place) / "job.sh"
        script.write_text(sbatch_script(launch, Path(place), name="rlhf", count=count), encoding="utf-8")
        done = run_slurm("sbatch", "--test-only", str(script))
    if done is None:
        raise refusal(f"sbatch did not answer within {SLURM_TIMEOUT_S:g} s", slurm)
    if done.returncode != 0:
        raise refusal(done.stderr, slurm)


def submit(runs: list[RunFolder], launch: Launch, *, folder: Path, name: str) -> list[str]:
    """Submit frozen runs, several as one array; write their job ids, `123` or `123_4`, to status.json and return them.

    `folder` is that of the run or the sweep; files of Slurm and submitit go below it. Raises ConfigError if Slurm
    refuses the job; the runs are then marked as failed and can be resumed.
    """
    executor = _executor(launch, folder, name)
    for run in runs:
        # The job id follows later; the job waits for it before it writes.
        update_status(run, state=QUEUED, reason=None, job_id=None, pid=None, host=None)
    from submitit.core.utils import FailedJobError

    try:
        jobs = executor.submit_array([RunInJob(run.path) for run in runs])
    except FailedJobError as error:
        for run in runs:
            update_status(run, state=FAILED, reason=f"not submitted: {error}")
        raise refusal(str(error), _section(launch)) from None
    for run, job in zip(runs, jobs, strict=True):
        update_status(run, job_id=job.job_id)
    return [job.job_id for job in jobs]


def log_file(job_id: str, folder: Path) -> Path:
    """Return the output file of a job of the run or sweep in `folder`."""
    return folder / SLURM_FOLDER / f"{job_id}_0_log.out"


def sbatch_script(launch: Launch, folder: Path, *, name: str, count: int = 1) -> str:
    """Return the sbatch script for `count` runs, without writing or submitting it.

    Raises ConfigError if submitit or Slurm is missing.
    """
    executor = _executor(launch, folder, name)
    if count > 1:
        executor.parameters["map_count"] = count  # as submitit does for an array
    text: str = executor._make_submission_file_text(executor._submitit_command_str, "0")
    return text


def _executor(launch: Launch, folder: Path, name: str) -> SlurmExecutor:
    slurm = _section(launch)
    _need_slurm()
    from submitit import SlurmExecutor

    # `exec` replaces the script's shell with Python, so that Python is the process that Slurm's warning reaches.
    python = f"exec {shlex.quote(sys.executable)}"
    executor = SlurmExecutor(folder / SLURM_FOLDER, max_num_timeout=_NEVER, python=python)
    gpus = {"gpus_per_node": slurm.gpus_per_node} if slurm.gpus_per_node else {}
    memory = {"mem": f"{round(slurm.mem_gb * 1024)}M"} if slurm.mem_gb is not None else {}
    executor.update_parameters(
        job_name=name,
        partition=slurm.partition,
        account=slurm.account,
        qos=slurm.qos,
        time=slurm.time,
        nodes=launch.nodes,
        **({"ntasks_per_node": 1} if launch.nodes > 1 else {}),
        cpus_per_task=slurm.cpus_per_task,
        comment=str(folder),
        setup=[*slurm.setup, *_python_path()],
        array_parallelism=slurm.max_parallel,
        wckey=None,
        stderr_to_stdout=True,
        use_srun=False,
        additional_parameters={
            # Signal only the batch process: see slurm_node.
            "signal": f"B:USR1@{round(launch.grace_s)}",
            "requeue": True,
            **{key.lstrip("-"): value for key, value in slurm.extra.items() if value is not False},
        },
        **gpus,
        **memory,
    )
    return executor


def _python_path() -> list[str]:
    """Return the line that sets the job's PYTHONPATH to this process's module path, for example a checkout."""
    entries = os.pathsep.join(entry for entry in sys.path if entry)
    return [f"export PYTHONPATH={shlex.quote(entries)}"]


def _section(launch: Launch) -> Slurm:
    assert launch.slurm is not None
    return launch.slurm


def _need_slurm() -> None:
    """Raise ConfigError if submitit or one of Slurm's commands is missing."""
    try:
        import submitit  # noqa: F401
    except ImportError:
        raise ConfigError(
            "submitit, which submits to Slurm, is not installed",
            where="launch.slurm",
            hint="pip install 'rlhf-cli[slurm]'",
        ) from None
    if missing := [name for name in ("sbatch", "srun", "squeue", "scontrol") if shutil.which(name) is None]:
        raise ConfigError(
            f"Slurm is not on this machine: there is no {missing[0]}",
            where="launch.slurm",
            expected="a login node of a cluster that Slurm runs",
            hint="launch=auto",
        )
