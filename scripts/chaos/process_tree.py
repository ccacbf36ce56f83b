"""Find all processes that a command has left behind, by descent.

`adopt_orphans` makes this process the reaper of its descendants (PR_SET_CHILD_SUBREAPER): a process that loses its
parent becomes its child, also in another session or behind the sandbox. Linux only.
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
    """A living process: its id, the ids of its parent and process group, and its command line (or its name)."""

    pid: int
    parent: int
    group: int
    command: str


def adopt_orphans() -> None:
    """Make every orphan below this process its child. Raise OSError if the kernel refuses."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "PR_SET_CHILD_SUBREAPER")


def below(root: int) -> list[Process]:
    """Return the living descendants of the process `root`, without zombies."""
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
    """Return whether it is one of several ranks."""
    return "rlhf_cli.launch.rank_process" in process.command and " -m " in process.command


def left_behind(patience_s: float) -> tuple[list[Process], float]:
    """Wait until this process has no descendants; return those left after `patience_s`, and the seconds waited.

    Call it after waiting for the command itself. Adopted zombies are reaped.
    """
    began = time.monotonic()
    while (found := below(os.getpid())) and time.monotonic() < began + patience_s:
        reap_adopted()
        time.sleep(_LOOK_S)
    reap_adopted()
    return found, time.monotonic() - began


def end(processes: Iterable[Process]) -> None:
    """Kill these descendants and reap them."""
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
    time.sleep(_LOOK_S)
    reap_adopted()


def reap_adopted() -> None:
    """Reap adopted children.

    Call it only when no child of this process's own is running, because it would be reaped, too.
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
