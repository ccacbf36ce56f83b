"""Says which process of which machine did something, so that a later reader knows whether that very one still lives.

A pid alone is not enough: it is given again, sooner or later, and every machine has its own. The moment that a process
started, in clock ticks since its machine did, and the id of that machine's boot make it one of a kind.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_PLACE_OF_START = 19
"""Counts from 0 after the name in parentheses of /proc/PID/stat: field 22, `starttime`, of proc(5)."""


@dataclass(frozen=True)
class ProcessIdentity:
    """One process. `start_ticks` and `boot` are None where the system does not tell, as on macOS."""

    pid: int
    host: str
    start_ticks: int | None = None
    boot: str | None = None

    def is_alive(self) -> bool | None:
        """Return whether this very process lives; None where that cannot be known from here: on another machine.

        A machine that has booted since, and a pid that another process has by now, are no.
        """
        if self.host != socket.gethostname():
            return None
        boot = boot_id()
        if self.boot is not None and boot is not None and self.boot != boot:
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass  # somebody else's
        if _has_ended(self.pid):
            return False
        now = start_ticks(self.pid)
        return self.start_ticks is None or now is None or now == self.start_ticks

    def is_of_this_boot(self) -> bool:
        """Return whether it ran under this machine's kernel, since it was last started; containers share one."""
        return self.boot is not None and self.boot == boot_id()

    def describe(self) -> str:
        """Return `process 4711 on HOST`."""
        return f"process {self.pid} on {self.host}"


def this_process() -> ProcessIdentity:
    """Return who is running this line."""
    return ProcessIdentity(os.getpid(), socket.gethostname(), start_ticks(os.getpid()), boot_id())


def start_ticks(pid: int) -> int | None:
    """Return when a process of this machine started, in clock ticks since boot; None where nothing tells."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        return int(stat.rpartition(")")[2].split()[_PLACE_OF_START])  # a name may hold spaces and parentheses
    except (OSError, ValueError, IndexError):
        return None


def _has_ended(pid: int) -> bool:
    """Return whether a process is only there because nobody has asked yet how it ended, as under a container's init."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[:1] in (["Z"], ["X"])


def boot_id() -> str | None:
    """Return the id of this machine's boot, None where the system has none."""
    try:
        return _BOOT.read_text(encoding="ascii").strip() or None
    except OSError:
        return None
