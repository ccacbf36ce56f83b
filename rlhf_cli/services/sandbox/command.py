"""Make the command that starts the sandbox, and the job it is given.

A job is sent to the launcher as JSON.

The launcher starts inside bubblewrap or by itself.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from pathlib import Path
from typing import TypedDict


class Program(TypedDict):
    """The program's text and its limits."""

    source: str
    timeout_s: float
    memory_bytes: int
    max_processes: int
    max_file_bytes: int


class Job(Program):
    """A program and its isolation.

    `mode` is `bubblewrap`, `namespaces` or `limits`; `root` is an empty folder, `visible` the paths that the program
    can see, `user` the user id that it changes to if root starts it.
    """

    mode: str
    root: str
    visible: list[str]
    user: int
    python: str
    environment: dict[str, str]


_PACKAGE = Path(__file__).resolve().parents[2]
_LAUNCHER_FILES = (
    "__init__.py",
    "services/__init__.py",
    *(f"services/sandbox/{name}.py" for name in ("__init__", "launcher", "processes", "walls")),
)
# All that a program sees of this machine besides the interpreter, read-only: no home, no project, no data.
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/nix/store", "/gnu/store")
_SYSTEM_FILES = ("/etc/ld.so.cache", "/etc/localtime")
PATH = "/usr/local/bin:/usr/bin:/bin"
PYTHONPATH = str(_PACKAGE.parent)


def command(mode: str, job: Job, *descriptors: int) -> list[str]:
    """Return the command line for a job; `descriptors` are file descriptors passed to the launcher.

    `mode` is `bubblewrap`, `namespaces` or `limits`.
    """
    options = "-S -s -P -B -X utf8 -m rlhf_cli.services.sandbox.launcher"
    launcher = [job["python"], *options.split(), *map(str, descriptors)]
    if mode != "bubblewrap":
        return launcher
    size = f"--perms 1777 --size {job['max_file_bytes']} --tmpfs"
    bwrap = shutil.which("bwrap") or "bwrap"
    words = [bwrap, *["--die-with-parent", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts"]]
    if os.geteuid() == 0:  # stay root until the launcher changes to the other user
        words += ["--cap-drop", "ALL"]
        for right in ("SETUID", "SETGID", "SETPCAP", "CHOWN", "KILL"):
            words += ["--cap-add", f"CAP_{right}"]
    else:
        words += ["--unshare-user", "--uid", "65534", "--gid", "65534"]
    words += f"--dev /dev {size} /dev/shm --remount-ro /dev {size} /tmp --proc /proc".split()
    for path in [*job["visible"], *(str(_PACKAGE / name) for name in _LAUNCHER_FILES)]:
        for parent in reversed(Path(path).parents[:-1]):  # bwrap would create them accessible to itself only
            words += ["--perms", "755", "--dir", str(parent)]
        words += ["--symlink", os.readlink(path), path] if os.path.islink(path) else ["--ro-bind", path, path]
    return [*words, *["--remount-ro", "/", "--chdir", "/tmp", "--"], *launcher]


def interpreter() -> str:
    """Return the base interpreter of the virtual environment, which has no third-party packages."""
    return os.path.realpath(getattr(sys, "_base_executable", sys.executable))


def visible() -> list[str]:
    """Return the system's and the interpreter's folders, none inside another."""
    needed = [sys.base_prefix, sys.base_exec_prefix, os.path.dirname(interpreter()), sysconfig.get_path("stdlib")]
    paths = [path for path in (*_SYSTEM, *_SYSTEM_FILES) if os.path.exists(path)]
    for path in sorted({os.path.realpath(path) for path in needed}, key=len):
        if not any(path == other or path.startswith(other + "/") for other in paths):
            paths.append(path)
    return paths
