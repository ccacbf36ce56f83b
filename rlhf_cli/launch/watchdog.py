"""Ends a rank that does not get on: a thread that looks at its pulse, and a timer of C's where no thread can run.

Of several ranks the one that hangs is to be blamed, and not those that wait for it. Every rank passes the same seams:
the one that has passed the fewest is behind; of several there, one that is stopped, one in which a reward runs, one
that does not wait in a collective. Only that one ends itself, and with it the run; the others end only where it cannot,
because it is stopped.
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
from os import _exit  # what stands in its place while rewards run is for rewards
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
"""So often it looks within the timeout."""
_LONGEST_LOOK_S = 5.0
_LATE_LOOKS, _LATE_S = 4, 2.0
"""So much longer a rank may take to end itself, before another one says that it hangs."""
_FAR_SHARE = 0.25
"""By that share of the timeout a rank waits longer where those it waits for are on machines that it does not see."""


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
    """Looks whether the rank of `pulse` gets on, of `world_size` ranks that train in `folder`."""

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
        """Open a context in which it looks."""
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
            # At once, for what comes next may leave no time to look again.
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
                self._pulse.beat()  # nobody ran here for a while, the whole process was stopped: it begins anew
            elif beat.age_s > self._timeout_s:
                self._judge(beat)

    def _arm(self) -> None:
        """Set the timer of C's. Where nobody sets it anew, because something holds the interpreter, it ends all."""
        faulthandler.dump_traceback_later(self._timeout_s + self._look_s, exit=True, file=self._stacks)

    def _judge(self, own: Beat) -> None:
        if self._world_size > 1 and any(self._folder.path.glob(failure_file(self._folder, "*").name)):
            return  # a rank has said why, and this one is about to be ended
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
        """Return whether a rank that has come as far still gets on: it is waited for, or will hang as well."""
        return any(one.seams == own.seams and one.age_s <= self._timeout_s for one in seen.values())

    def _end(self, hang: Hang) -> None:
        """Say what hangs and leave; nothing that could wait for the thread that hangs is touched."""
        try:
            if self._world_size == 1:
                tell(self._folder, hang, self._timeout_s)
                self._pulse.close()
            else:
                note(self._folder, hang, self._timeout_s)
            dump_file(self._folder.path, self._pulse.rank).unlink(missing_ok=True)  # the keeper is not needed
        finally:
            _exit(EXIT_CRASH)

    def _suspend(self, number: int, _: FrameType | None) -> None:
        """Stop as Ctrl-Z wants it, and a scheduler that suspends a job; the time until it goes on does not count."""
        self._is_suspended = True
        faulthandler.cancel_dump_traceback_later()
        os.kill(os.getpid(), signal.SIGSTOP)
        self._pulse.beat()
        self._is_suspended = False


def _furthest_behind(folder: Path, seen: dict[int, Beat]) -> Beat:
    """Return the rank that the others wait for, as far as can be seen."""
    in_reward = {one.rank for one in running_rewards(folder)}

    def place(beat: Beat) -> tuple[int, bool, bool, bool, int]:
        return beat.seams, not _is_stopped(beat.pid), beat.rank not in in_reward, beat.waits, beat.rank

    return min(seen.values(), key=place)


def _is_stopped(pid: int) -> bool:
    """Return whether a process is stopped by a signal; False where nothing tells."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] in "Tt"


@contextlib.contextmanager
def _kept(run: Path, dump: Path) -> Iterator[None]:
    """Open a context in which somebody is there who outlives this process, to say what `dump` tells of its end."""
    assert hang_keeper.__file__ is not None
    # Without site-packages, and without looking for modules where the file lies.
    command = [sys.executable, "-I", "-S", hang_keeper.__file__, str(run), str(dump)]
    keeper = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        yield
    finally:
        assert keeper.stdin is not None
        keeper.stdin.close()
        keeper.wait()
