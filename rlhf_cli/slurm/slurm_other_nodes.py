"""Let the other nodes of a Slurm job join the run on the first node: srun starts `rlhf join`, one task per node.

The first node's command is a child of the batch process, as in a single-node job: a signal to srun would reach tasks
that have no handler yet.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

from rlhf_cli.errors import EXIT_OK, EXIT_PREEMPTED
from rlhf_cli.launch.free_ports import free_ports
from rlhf_cli.plan.meeting_place import MeetingPlace, own_host

_SLURM_TIMEOUT_S = 60.0
_LEAVE_S = 30.0
"""Seconds for the other nodes to leave, and for the first node to notice that they are gone."""


class OtherNodes:
    """The other nodes of a job; `reason` is why the run cannot continue without them, or None."""

    def __init__(self, srun: subprocess.Popen[bytes] | None) -> None:
        self.reason: str | None = None
        self._srun = srun
        self._ended_at: float | None = None

    def have_failed(self) -> bool:
        """Return True, once, if they ended without the first node noticing: they never joined it."""
        code = self._srun.poll() if self._srun is not None else None
        if code in (None, EXIT_OK, EXIT_PREEMPTED) or self.reason is not None:
            return False
        self._ended_at = self._ended_at or time.monotonic()
        if time.monotonic() < self._ended_at + _LEAVE_S:
            return False
        self.reason = f"the other nodes did not join: srun ended with code {code}, and the job's log says why"
        return True

    def end(self) -> None:
        """Wait until they have left, and kill those that do not."""
        if self._srun is None:
            return
        for number in (None, signal.SIGTERM, signal.SIGKILL):
            if number is not None:
                self._srun.send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._srun.wait(_LEAVE_S)
                return


@contextlib.contextmanager
def other_nodes(place: MeetingPlace | None, num_nodes: int) -> Iterator[OtherNodes]:
    """Run `rlhf join` on all other nodes of this job inside the block; does nothing if `place` is None."""
    srun = subprocess.Popen(join_command(place, num_nodes)) if place is not None else None
    others = OtherNodes(srun)
    try:
        yield others
    finally:
        others.end()


def join_command(place: MeetingPlace, num_nodes: int) -> list[str]:
    """Return the command that starts `rlhf join` on all other nodes of the job."""
    others = str(num_nodes - 1)
    cpus = os.environ.get("SLURM_CPUS_PER_TASK")
    return [
        *("srun", "--relative=1", f"--nodes={others}", f"--ntasks={others}", "--ntasks-per-node=1"),
        # A failed node has told the first one, which tells the others.
        "--kill-on-bad-exit=0",
        *([f"--cpus-per-task={cpus}"] if cpus else []),  # srun does not inherit this since 22.05
        *(sys.executable, "-m", "rlhf_cli", "join", str(place)),
    ]


def place_in_job() -> MeetingPlace:
    """Return where the nodes of this job can meet on this one, the first, at an address that Slurm uses."""
    (port,) = free_ports(1)
    name = os.environ.get("SLURMD_NODENAME")
    candidates = [MeetingPlace(host, port) for host in (name, _address(name), own_host()) if host]
    usable = [place for place in candidates if _is_usable(place)]
    return next((place for place in usable if not place.is_own_alone()), (usable or candidates)[0])


def _is_usable(place: MeetingPlace) -> bool:
    with contextlib.suppress(OSError):
        place.listen().close()
        return True
    return False


def _address(node: str | None) -> str | None:
    """Return Slurm's address of a node, or None if unknown."""
    try:
        said = subprocess.run(
            ["scontrol", "--oneliner", "show", "node", node or ""],
            capture_output=True,
            text=True,
            timeout=_SLURM_TIMEOUT_S,
            check=False,
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r"\bNodeAddr=(\S+)", said)
    return found.group(1) if found else None
