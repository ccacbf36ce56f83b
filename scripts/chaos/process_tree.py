"""Finds every process that a command has left behind, wherever it has gone: by descent, which nobody can shake off.

`adopt_orphans` makes this process the reaper of all that descends from it (PR_SET_CHILD_SUBREAPER): what loses its
parent becomes its child, in another session, with an emptied environment, behind the sandbox's walls. Linux only.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
_LOOK_S = 0.02


@dataclass(frozen=True)
class Process:
    """A living process: its id, its parent's, its process group's, and its command line (or its name, without one)."""

    pid: int
    parent: int
    group: int
    command: str


def adopt_orphans() -> None:
    """Make every orphan below this process a child of this process. Raises OSError where the kernel does not."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "PR_SET_CHILD_SUBREAPER")


def below(root: int) -> list[Process]:
    """Return the living descendants of the process `root`, without itself; zombies are none."""
    children: dict[int, list[Process]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (process := _read(int(name))) is not None:
            children.setdefault(process.parent, []).append(process)
    found: list[Process] = []
    todo = [root]
    while todo:
        new = children.get(todo.pop(), [])
        found += new
        todo += [process.pid for process in new]
    return found


def is_rank(process: Process) -> bool:
    """Return whether it is one of several ranks, which the command has started."""
    return "rlhf_cli.launch.rank_process" in process.command and " -m " in process.command


def left_behind(patience_s: float) -> tuple[list[Process], float]:
    """Wait until nothing descends from this process; return what still does after `patience_s`, and the seconds waited.

    To be called when the command itself has been waited for. Zombies that were adopted are reaped.
    """
    began = time.monotonic()
    while (found := below(os.getpid())) and time.monotonic() < began + patience_s:
        reap_adopted()
        time.sleep(_LOOK_S)
    reap_adopted()
    return found, time.monotonic() - began


def end(processes: Iterable[Process]) -> None:
    """Kill these, which are ours by descent, and reap them."""
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
    time.sleep(_LOOK_S)
    reap_adopted()


def reap_adopted() -> None:
    """Take the exit codes of adopted children, so that they leave the table of processes.

    For when no child of one's own runs: its code would be taken as well.
    """
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _read(pid: int) -> Process | None:
    try:
        head, _, tail = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return None
    state, parent, group = tail.split()[:3]
    if state in "ZX":
        return None
    return Process(pid, int(parent), int(group), words or head.partition("(")[2])
