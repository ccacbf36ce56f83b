"""Check whether the nodes of a cluster can see a folder, as far as this machine can tell."""

from __future__ import annotations

import socket
import subprocess
from pathlib import Path

from rlhf_cli.config.schema.launch_section import Slurm
from rlhf_cli.errors import ConfigError, Prose

_SINFO_TIMEOUT_S = 20.0
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
    try:
        done = subprocess.run(
            ["sinfo", "--noheader", "--Node", "--format=%N", *partition],
            capture_output=True,
            text=True,
            timeout=_SINFO_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return sorted({line.partition(".")[0] for line in done.stdout.split()})


def _here() -> str:
    return socket.gethostname().partition(".")[0]


def _few(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
