"""End a rank that makes no progress, with a thread that checks its pulse and a C timer for when no thread can run.

If several ranks stand still, the one that hangs is to blame, not those that wait for it. Every rank passes the same
synchronization points, so the rank that has passed the fewest is behind. If several are equally far behind, the one to
blame is a stopped rank, else one that runs a reward, else one that does not wait in a collective. Only that rank ends
itself, and with it the run. Another rank ends the run only if the hanging one cannot, because it is stopped.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from os import _exit  # the original: os._exit is patched while rewards run
from pathlib import Path
from types import FrameType

from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.errors import EXIT_CRASH
from rlhf_cli.launch import hang_keeper
from rlhf_cli.launch.hang_report import Hang, dump_file, hang_of, note, own_stacks, tell
from rlhf_cli.launch.rank_failures import failure_file
from rlhf_cli.launch.stopping import handled
from rlhf_cli.runs.pulse import Beat, Pulse, pulses
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.running_reward import running_rewards

_LOOKS = 20
"""Number of checks within the timeout."""
_LONGEST_LOOK_S = 5.0
_LATE_LOOKS, _LATE_S = 4, 2.0
"""Extra time that a rank has to end itself before another rank reports its hang."""
_FAR_SHARE = 0.25
"""Share of the timeout that a rank waits longer if the ranks it waits for are on other machines."""


@contextlib.contextmanager
def watched(folder: RunFolder, experiment: Experiment, rank: int) -> Iterator[Pulse]:
    """Open a context in which this rank has a pulse, and a watchdog unless `launch.hang_timeout_s` is off."""
    pulse = Pulse(folder.path, rank)
    timeout_s, world_size = experiment.launch.hang_timeout_s, int(os.environ.get("WORLD_SIZE", "1"))
    try:
        if isinstance(timeout_s, float):
            with Watchdog(folder, pulse, timeout_s=timeout_s, world_size=world_size)():
                yield pulse
        else:
            yield pulse
    finally:
        pulse.close()


class Watchdog:
    """Checks that the rank of `pulse` makes progress; it is one of `world_size` ranks training in `folder`."""

    def __init__(self, folder: RunFolder, pulse: Pulse, *, timeout_s: float, world_size: int) -> None:
        self._folder = folder
        self._pulse = pulse
        self._timeout_s = timeout_s
        self._world_size = world_size
        self._look_s = min(_LONGEST_LOOK_S, timeout_s / _LOOKS)
        self._main_thread = threading.get_ident()
        self._is_closed = threading.Event()
        self._is_suspended = False

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        """Open a context in which the watchdog runs."""
        dump = dump_file(self._folder.path, self._pulse.rank)
        thread = threading.Thread(target=self._look, name="watchdog", daemon=True)
        with ExitStack() as stack:
            stack.callback(dump.unlink, missing_ok=True)
            self._stacks = stack.enter_context(dump.open("w", encoding="utf-8"))
            if self._world_size == 1:
                stack.enter_context(_kept(self._folder.path, dump))
            stack.callback(faulthandler.cancel_dump_traceback_later)
            if signal.getsignal(signal.SIGTSTP) == signal.SIG_DFL:
                stack.enter_context(handled({signal.SIGTSTP: self._suspend}))
            # Arm at once: the next operation may leave no time for a check.
            self._pulse.on_watched = self._arm
            stack.callback(setattr, self._pulse, "on_watched", bool)
            thread.start()
            stack.callback(thread.join)
            stack.callback(self._is_closed.set)
            yield

    def _look(self) -> None:
        looked_at = time.monotonic()
        while not self._is_closed.wait(self._look_s):
            late_s, looked_at = time.monotonic() - looked_at - self._look_s, time.monotonic()
            beat = self._pulse.read()
            if not beat.is_watched or self._is_suspended:
                faulthandler.cancel_dump_traceback_later()
                continue
            self._arm()
            if late_s > _LATE_LOOKS * self._look_s + _LATE_S:
                self._pulse.beat()  # no thread ran for a while, so the whole process was stopped: start again
            elif beat.age_s > self._timeout_s:
                self._judge(beat)

    def _arm(self) -> None:
        """Set the C timer. If it is not renewed because something holds the GIL, it ends the process."""
        faulthandler.dump_traceback_later(self._timeout_s + self._look_s, exit=True, file=self._stacks)

    def _judge(self, own: Beat) -> None:
        if self._world_size > 1 and any(self._folder.path.glob(failure_file(self._folder, "*").name)):
            return  # a rank has reported a failure, and this one will be ended soon
        hang = hang_of(self._folder.path, own.rank, stacks=own_stacks(self._main_thread))
        if hang.waits():
            self._pulse.say_waits()
        seen = pulses(self._folder.path)
        behind = _furthest_behind(self._folder.path, seen)
        far_s = self._timeout_s * _FAR_SHARE if len(seen) < self._world_size and hang.waits() else 0.0
        if behind.rank != own.rank:
            if behind.is_watched and behind.age_s > self._timeout_s + _LATE_LOOKS * self._look_s + _LATE_S + far_s:
                self._end(hang_of(self._folder.path, behind.rank, is_stopped=_is_stopped(behind.pid)))
        elif own.age_s > self._timeout_s + far_s and not self._may_wait_for_one(own, seen):
            self._end(hang)

    def _may_wait_for_one(self, own: Beat, seen: dict[int, Beat]) -> bool:
        """Return whether a rank at the same synchronization point still makes progress: this one may wait for it."""
        return any(one.seams == own.seams and one.age_s <= self._timeout_s for one in seen.values())

    def _end(self, hang: Hang) -> None:
        """Report the hang and exit, without touching anything that could block on the hanging thread."""
        try:
            if self._world_size == 1:
                tell(self._folder, hang, self._timeout_s)
                self._pulse.close()
            else:
                note(self._folder, hang, self._timeout_s)
            dump_file(self._folder.path, self._pulse.rank).unlink(missing_ok=True)  # the keeper need not report
        finally:
            _exit(EXIT_CRASH)

    def _suspend(self, number: int, _: FrameType | None) -> None:
        """Suspend the process, for Ctrl-Z or a scheduler; the suspended time does not count."""
        self._is_suspended = True
        faulthandler.cancel_dump_traceback_later()
        os.kill(os.getpid(), signal.SIGSTOP)
        self._pulse.beat()
        self._is_suspended = False


def _furthest_behind(folder: Path, seen: dict[int, Beat]) -> Beat:
    """Return the rank that the others wait for, as far as this machine can tell."""
    in_reward = {one.rank for one in running_rewards(folder)}

    def place(beat: Beat) -> tuple[int, bool, bool, bool, int]:
        return beat.seams, not _is_stopped(beat.pid), beat.rank not in in_reward, beat.waits, beat.rank

    return min(seen.values(), key=place)


def _is_stopped(pid: int) -> bool:
    """Return whether a process is stopped by a signal; False if unknown."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] in "Tt"


@contextlib.contextmanager
def _kept(run: Path, dump: Path) -> Iterator[None]:
    """Open a context with a helper process that outlives this one, and reports its end from `dump`."""
    assert hang_keeper.__file__ is not None
    # Run it without site-packages, and without the file's folder on the module path.
    command = [sys.executable, "-I", "-S", hang_keeper.__file__, str(run), str(dump)]
    keeper = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        yield
    finally:
        assert keeper.stdin is not None
        keeper.stdin.close()
        keeper.wait()
