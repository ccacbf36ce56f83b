"""Run Slurm on one machine for tests: munged, slurmctld and slurmd in a folder, without a system service.

Configuration, munge's key and socket, logs and pids are in FOLDER; keep its path short, because a socket's path has at
most 107 characters. The daemons run as the calling user. Two CPUs are offered; there are no limits, no accounting, no
database. With N it pretends to be N nodes with a slurmd each. Debian's packages: slurm-wlm, munge.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

NEEDED = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scontrol", "scancel")
PARTITION = "here"
_START_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 10.0
_STARTED: dict[Path, list[subprocess.Popen[bytes]]] = {}
"""Folder -> the daemons of the Slurm in it."""

_CONF = """# A Slurm of one machine, for tests.
ClusterName=one
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
CryptoType=crypto/munge
# A job that is requeued waits until credentials of its first start have expired.
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/controller
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_interval=2,bf_interval=2
MpiDefault=none
ReturnToService=1
KillWait=30
MinJobAge=300
MailProg=/bin/true
{nodes}
PartitionName={partition} Nodes={names} Default=YES MaxTime=60 DefaultTime=10 State=UP
"""


def missing() -> list[str]:
    """Return the missing programs of Slurm and munge."""
    return [name for name in NEEDED if shutil.which(name, path=_path()) is None]


def _path() -> str:
    return os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])


_NODE = "NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=2 State=UNKNOWN"


def bring_up(folder: Path, num_nodes: int = 1) -> dict[str, str]:
    """Start Slurm in `folder`, wait until its nodes are idle, and return the environment for its commands.

    Raise RuntimeError with the daemons' last output if it does not start; the daemons are then stopped.
    """
    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    host = socket.gethostname().partition(".")[0]
    names = [host] if num_nodes == 1 else [f"node{number}" for number in range(1, num_nodes + 1)]
    for name in ("controller", *names):
        (folder / name).mkdir(exist_ok=True)
    nodes = "\n".join(_NODE.format(name=name, host=host, port=_free_port()) for name in names)
    values = {"host": host, "folder": folder, "user": getpass.getuser(), "partition": PARTITION}
    values |= {"nodes": nodes, "names": ",".join(names), "controller_port": str(_free_port())}
    (folder / "slurm.conf").write_text(_CONF.format(**values), encoding="utf-8")
    (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n", encoding="utf-8")
    key = folder / "munge.key"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o600)
    environment = {"SLURM_CONF": str(folder / "slurm.conf")}
    files = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
    munge = [f"--{name}={folder}/munge.{file}" for name, file in files.items()]
    try:
        # munged needs --force if other users can write to the folder's parents, as in tests.
        _start(folder, ["munged", "--foreground", "--force", "--num-threads=2", *munge], environment)
        _wait_for((folder / "munge.socket").exists, folder, "munged does not answer")
        _start(folder, ["slurmctld", "-D", "-c"], environment)
        for name in names:
            _start(folder, ["slurmd", "-D", "-c", "-N", name], environment)
        idle = ["idle"] * num_nodes
        _wait_for(lambda: _node_states(environment) == idle, folder, "the nodes do not come up")
    except BaseException:
        bring_down(folder)
        raise
    return environment


def bring_down(folder: Path) -> None:
    """Stop the processes that `bring_up` started in `folder`, the last first, and the processes they left."""
    for process in reversed(_STARTED.pop(folder.resolve(), [])):
        process.terminate()
        try:
            process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    # slurmstepd, which runs a job's step, outlives slurmd, and its job continues.
    # It ignores SIGTERM.
    for pid in _of_slurm_in(folder.resolve()):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _start(folder: Path, command: list[str], environment: dict[str, str]) -> None:
    with (folder / f"{command[0]}.out").open("ab") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, **environment, "PATH": _path()},
            start_new_session=True,
        )
    _STARTED.setdefault(folder, []).append(process)


def _of_slurm_in(folder: Path) -> list[int]:
    """Return the ids of other processes with the environment of the Slurm in this folder."""
    setting = f"SLURM_CONF={folder / 'slurm.conf'}".encode()
    found = []
    for process in Path("/proc").iterdir():
        if not process.name.isdigit() or int(process.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            if setting in (process / "environ").read_bytes().split(b"\0"):
                found.append(int(process.name))
    return found


def _node_states(environment: dict[str, str]) -> list[str]:
    done = subprocess.run(
        ["sinfo", "-h", "-N", "-o", "%T"],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        check=False,
    )
    return done.stdout.split()


def _wait_for(condition: object, folder: Path, problem: str) -> None:
    assert callable(condition)
    until = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < until:
        if condition():
            return
        time.sleep(0.2)
    logs = [*sorted(folder.glob("*.out")), *sorted(folder.glob("*.log"))]
    tails = "\n".join(f"{log.name}: {log.read_text(errors='replace')[-800:]}" for log in logs)
    raise RuntimeError(f"{problem}\n{tails}")


def _free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return int(server.getsockname()[1])
