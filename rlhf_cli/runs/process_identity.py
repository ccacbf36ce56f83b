"""Tell one process from all others, also on other machines and after it has ended.

A pid alone is not enough: pids are reused, and every machine has its own. The process's start time, in clock ticks
since boot, and the boot id of the machine make it unique.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_PLACE_OF_START = 19
"""Index of field 22 of proc(5), `starttime`, counted from 0 after the name in parentheses of /proc/PID/stat."""


@dataclass(frozen=True)
class ProcessIdentity:
    """One process. `start_ticks` and `boot` are None on systems without /proc, such as macOS."""

    pid: int
    host: str
    start_ticks: int | None = None
    boot: str | None = None

    def is_alive(self) -> bool | None:
        """Return whether this exact process lives, or None if it ran on another machine.

        Returns False if the machine has rebooted since, or if another process now has the pid.
        """
        if self.host != socket.gethostname():
            return None
        boot = boot_id()
        if self.boot is not None and boot is not None and self.boot != boot:
            return False
        if not is_running(self.pid):
            return False
        now = start_ticks(self.pid)
        return self.start_ticks is None or now is None or now == self.start_ticks

    def is_of_this_boot(self) -> bool:
        """Return whether it ran under the running kernel since the last boot; containers share one kernel."""
        return self.boot is not None and self.boot == boot_id()

    def describe(self) -> str:
        """Return `process 4711 on HOST`."""
        return f"process {self.pid} on {self.host}"


def this_process() -> ProcessIdentity:
    """Return the identity of the current process."""
    return ProcessIdentity(os.getpid(), socket.gethostname(), start_ticks(os.getpid()), boot_id())


def start_ticks(pid: int) -> int | None:
    """Return when a local process started, in clock ticks since boot, or None if unknown."""
    fields = stat_fields(pid)
    return int(fields[_PLACE_OF_START]) if len(fields) > _PLACE_OF_START else None


def stat_fields(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat after the name, which may hold blanks; [] if there is no such file."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()


def boot_id() -> str | None:
    """Return the id of this machine's boot, or None if the system has none."""
    try:
        return _BOOT.read_text(encoding="ascii").strip() or None
    except OSError:
        return None


def is_running(pid: int) -> bool:
    """Return whether a process of this machine has not ended."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # it belongs to another user
    return stat_fields(pid)[:1] not in (["Z"], ["X"])  # ended but not reaped, as happens under a container's init


def is_stopped(pid: int) -> bool:
    """Return whether a process is stopped by a signal; False if unknown."""
    return stat_fields(pid)[:1] in (["T"], ["t"])
