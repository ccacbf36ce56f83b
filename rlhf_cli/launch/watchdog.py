"""End a rank that hangs, and report its phase and stack.

If several ranks stand still, the one that hangs is to blame, not those that wait for it. Every rank passes the same
synchronization points, so the rank that has passed the fewest is behind. If several are equally far behind, the one to
blame is a stopped rank, else one that runs a reward, else one that does not wait in a collective. Only that rank ends
itself, and with it the run. Another rank ends the run only if the hanging one cannot, because it is stopped.

No Python code runs in a process in which compiled code holds the GIL. A second process then reports the hang and kills
the first one. It counts its own looks: a clock goes on while a process is stopped (SIGSTOP, a paused container).
"""

from __future__ import annotations

import contextlib
import faulthandler
import mmap
import os
import re
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial

from rlhf_cli.errors import EXIT_CRASH, RlhfError
from rlhf_cli.launch.stopping import RankFailure, failure_file, resume_hint
from rlhf_cli.process import die_with, handled, is_stopped
from rlhf_cli.runs.heartbeat import Beat, Heartbeat, heartbeats
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.run_status import FAILED, update_status
from rlhf_cli.text.redaction import printable, redacted

_DUMP = signal.SIGRTMAX  # on which faulthandler writes the stacks
_leave = partial(os._exit, EXIT_CRASH)  # the original: os._exit is patched while rewards run
_SHOWN_FRAMES = 3
_SHOW_CURSOR = "\x1b[?25h\n"
_STDERR = 2
_WAITING = ("/threading.py", "/queue.py", "/selectors.py", "/concurrent/futures/", "/multiprocessing/")
"""Files of the Python standard library in which an idle thread waits."""
_OF_REWARDS = ("/rlhf_cli/rewards/stack/calling.py",)
_OF_OTHERS = ("/torch/distributed/", "/accelerate/utils/operations.py", "/deepspeed/comm/", "/torch/autograd/graph.py")
"""Files in which a rank waits for others: in a collective, or in a backward pass that gathers gradients."""
_LOOKS = 20  # number of checks within the timeout
_LONGEST_LOOK_S = 5.0
_LATE_LOOKS, _LATE_S = 4, 2.0  # extra time that a rank has to end itself before another rank reports its hang
_FAR_SHARE = 0.25  # share of the timeout that a rank waits longer if the ranks it waits for are on other machines


@dataclass(eq=False)
class Watchdog:
    """Checks that the rank of `heartbeat` makes progress; it is one of `world_size` ranks training in `folder`."""

    folder: RunFolder
    heartbeat: Heartbeat
    timeout_s: float
    world_size: int
    thread: int = field(default_factory=threading.get_ident)
    is_closed: threading.Event = field(default_factory=threading.Event)

    @property
    def look_s(self) -> float:
        """Return the time between two looks."""
        return min(_LONGEST_LOOK_S, self.timeout_s / _LOOKS)

    def look(self, looks: mmap.mmap) -> None:
        """Look from time to time, in a thread, whether the rank makes progress; show each look in `looks`."""
        looked_at = time.monotonic()
        while not self.is_closed.wait(self.look_s):
            late_s, looked_at = time.monotonic() - looked_at - self.look_s, time.monotonic()
            looks[0] = (looks[0] + 1) % 256
            beat = self.heartbeat.read()
            if self._was_stopped(late_s):
                self.heartbeat.stopped_s += late_s
                self.heartbeat.beat()  # start again
            elif beat.is_watched and beat.age_s > self.timeout_s:
                self._judge(beat)

    def _was_stopped(self, late_s: float) -> bool:
        return late_s > min(_LATE_LOOKS * self.look_s + _LATE_S, self.timeout_s / 2)

    @contextlib.contextmanager
    def from_outside(self) -> Iterator[mmap.mmap]:
        """Open a context in which a fork of this process watches it; `look` shows its looks in the memory."""
        with mmap.mmap(-1, mmap.PAGESIZE) as looks, tempfile.TemporaryFile() as dump:
            faulthandler.register(_DUMP, file=dump, all_threads=True)  # in C: it needs no GIL
            owner = os.getpid()
            if (pid := os.fork()) == 0:
                try:
                    self._look_from_outside(owner, looks, dump.fileno())
                finally:
                    _leave()
            try:
                yield looks
            finally:
                with contextlib.suppress(ProcessLookupError, ChildProcessError):
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)
                faulthandler.unregister(_DUMP)

    def _look_from_outside(self, owner: int, looks: mmap.mmap, dump: int) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        os.setsid()
        die_with(owner)
        silent, last = 0, -1
        while silent * self.look_s < self.timeout_s + 2 * self.look_s:  # the thread inside judges first
            looked_at = time.monotonic()
            time.sleep(self.look_s)
            if os.getppid() != owner:
                return
            was_stopped = self._was_stopped(time.monotonic() - looked_at - self.look_s)
            is_excused = was_stopped or is_stopped(owner) or not self.heartbeat.read().is_watched
            silent, last = 0 if is_excused or looks[0] != last else silent + 1, looks[0]
        beat = self.heartbeat.read()  # before the signal, which may end the hang
        os.kill(owner, _DUMP)
        time.sleep(1.0)
        threads = os.pread(dump, os.fstat(dump).st_size, 0).decode(errors="replace").split("\n\n")
        frames = (re.findall(r'File "(.*)", line (\d+) in (.*)', thread) for thread in reversed(threads))
        stacks = (tuple(f"{file}:{line} in {name}" for file, line, name in reversed(thread)) for thread in frames)
        failure = _failure_of(beat, tuple(filter(None, stacks)), self.timeout_s, is_stopped=False)
        self._report(failure, partial(os.kill, owner, signal.SIGKILL))

    def _judge(self, own: Beat) -> None:
        if self.world_size > 1 and any(self.folder.path.glob(failure_file(self.folder, "*").name)):
            return  # a rank has reported a failure, and this one will be ended soon
        found = {
            ident: tuple(f"{line.filename}:{line.lineno} in {line.name}" for line in traceback.extract_stack(frame))
            for ident, frame in sys._current_frames().items()
        }
        stacks = (found.pop(self.thread), *(stack for stack in found.values() if _is_of_rewards(stack)))
        waits = any(one in line for line in stacks[0][-2 * _SHOWN_FRAMES :] for one in _OF_OTHERS)
        if waits:
            self.heartbeat.say_waits()
        seen = heartbeats(self.folder.path)
        behind = min(  # the rank that the others wait for, as far as this machine can tell
            seen.values(),
            key=lambda beat: (beat.seams, not is_stopped(beat.pid), not beat.rewards, beat.waits, beat.rank),
        )
        far_s = self.timeout_s * _FAR_SHARE if len(seen) < self.world_size and waits else 0.0
        if behind.rank != own.rank:
            if behind.is_watched and behind.age_s > self.timeout_s + _LATE_LOOKS * self.look_s + _LATE_S + far_s:
                self._report(_failure_of(behind, (), self.timeout_s, is_stopped=is_stopped(behind.pid)), _leave)
        elif own.age_s > self.timeout_s + far_s and not any(
            one.seams == own.seams and one.age_s <= self.timeout_s for one in seen.values()
        ):  # else this rank may wait for one at the same point that still makes progress
            self._report(_failure_of(own, stacks, self.timeout_s, is_stopped=False), _leave)

    def _report(self, failure: RankFailure, end: Callable[[], object]) -> None:
        """Report a hang and call `end`, without touching anything that could block on the hanging thread."""
        try:
            with contextlib.suppress(OSError):  # on a full disk, still report the rest
                failure.record(self.folder)
                with self.folder.log.open("a", encoding="utf-8") as log:
                    log.write(printable(redacted(f"{failure.traceback}\n{failure.message}")) + "\n")
            if self.world_size == 1:  # else the process that started the ranks reads the record
                shown = _SHOW_CURSOR if os.isatty(_STDERR) else ""
                where = f"{resume_hint(self.folder)}\nrun folder: {self.folder.shown}, with the whole stack in log.txt"
                message = printable(redacted(f"error: {failure.message}\n{where}\n"))
                os.write(_STDERR, (shown + message).encode())  # sys.stderr may be locked by the hanging thread
                with contextlib.suppress(OSError):
                    update_status(self.folder, state=FAILED, reason=failure.message, failing_rank=failure.rank)
                self.heartbeat.close()
        finally:
            end()


@contextlib.contextmanager
def watched(folder: RunFolder, timeout_s: float | str, rank: int) -> Iterator[Heartbeat]:
    """Open a context in which this rank has a heartbeat, and a watchdog unless the timeout is `off`."""
    heartbeat = Heartbeat(folder.path, rank)
    with ExitStack() as stack:
        stack.callback(heartbeat.close)
        if isinstance(timeout_s, float):
            world_size = int(os.environ.get("WORLD_SIZE", "1"))
            watchdog = Watchdog(folder, heartbeat, timeout_s, world_size)
            if signal.getsignal(signal.SIGTSTP) == signal.SIG_DFL:  # which does nothing in a session of its own
                stack.enter_context(handled({signal.SIGTSTP: lambda *_: os.kill(os.getpid(), signal.SIGSTOP)}))
            looks = stack.enter_context(watchdog.from_outside())
            thread = threading.Thread(target=watchdog.look, args=[looks], name="watchdog", daemon=True)
            thread.start()
            stack.callback(thread.join)
            stack.callback(watchdog.is_closed.set)
        yield heartbeat


def _failure_of(beat: Beat, stacks: tuple[tuple[str, ...], ...], timeout_s: float, *, is_stopped: bool) -> RankFailure:
    """Return the failure of a rank that makes no progress, dated at its last sign of progress.

    `stacks` are its threads', main thread first, each `file:line in function`, innermost last; () if unreadable.
    """
    rewards = "reward " + ", ".join(map(repr, beat.rewards)) if beat.rewards else ""
    doing = ": it is stopped, by a signal such as SIGSTOP" if is_stopped else f", in {rewards or beat.phase}"
    what = f"no progress for {beat.age_s:.{0 if beat.age_s >= 10 else 1}f} s{doing}"
    hint = "launch.hang_timeout_s=3600  # or off, if a step takes that long"
    if beat.rewards:
        key = f"rewards.{beat.rewards[0]}"
        hint = f"{key}.timeout_s=60  # ends a call after 60 s\n{key}.isolate=true  # ends the row, not the run\n{hint}"
    where = f"rank {beat.rank}, {beat.phase}" + (f", {rewards}" if rewards else "")
    in_rewards = [stack for stack in stacks if _is_of_rewards(stack)]
    busy = [stack for stack in in_rewards if not any(one in stack[-1] for one in _WAITING)]
    shown = next(iter([*busy, *in_rewards, *stacks]), ())  # of a running reward if there is one, else the main thread's
    ours = [place for place, line in enumerate(shown) if any(one in line for one in _OF_REWARDS)]
    innermost = shown[(ours[-1] + 1 if ours else 0) :][-_SHOWN_FRAMES:] or shown[-_SHOWN_FRAMES:]
    got = "\n".join(innermost) or "unknown: its stack could not be read"
    expected = f"progress within launch.hang_timeout_s={timeout_s:g}"
    error = RlhfError(what, where=where, got=got, expected=expected, hint=hint)
    told = "\n".join("\n  ".join(("thread:", *stack)) for stack in stacks) or "  unknown"
    trace = f"rank {beat.rank} hangs; its threads, the innermost place last:\n{told}"
    return RankFailure(beat.rank, time.time() - beat.age_s, message=str(error), traceback=trace)


def _is_of_rewards(stack: tuple[str, ...]) -> bool:
    return any(one in line for line in stack for one in _OF_REWARDS)
