"""End a rank that hangs, and report its phase and stack.

If several ranks stand still, the one that hangs is to blame, not those that wait for it. Every rank passes the same
synchronization points, so the rank that has passed the fewest is behind. If several are equally far behind, the one to
blame is a stopped rank, else one that runs a reward, else one that does not wait in a collective. Only that rank ends
itself, and with it the run. Another rank ends the run only if the hanging one cannot, because it is stopped.

No Python code runs in a process in which compiled code holds the GIL. A second process then reports the hang and kills
the first one (outside_watch.py). The time for which a process was stopped does not count.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from os import _exit  # the original: os._exit is patched while rewards run
from types import FrameType

from rlhf_cli.errors import EXIT_CRASH, RlhfError
from rlhf_cli.launch.outside_watch import Stacks, watched_from_outside
from rlhf_cli.launch.ranks_end import RankFailure, failure_file, resume_hint
from rlhf_cli.process import handled
from rlhf_cli.runs.heartbeat import Beat, Heartbeat, heartbeats
from rlhf_cli.runs.process_identity import is_stopped
from rlhf_cli.runs.run_folder import RunFolder, write_json
from rlhf_cli.runs.run_status import FAILED, update_status
from rlhf_cli.text.redaction import redacted
from rlhf_cli.text.terminal_output import printable

_SHOWN_FRAMES = 3
_SHOW_CURSOR = "\x1b[?25h\n"
_STDERR = 2
_WAITING = ("/threading.py", "/queue.py", "/selectors.py", "/concurrent/futures/", "/multiprocessing/")
"""Files of the Python standard library in which an idle thread waits."""
_OF_REWARDS = ("/rlhf_cli/rewards/stack/calling.py",)
_OF_OTHERS = ("/torch/distributed/", "/accelerate/utils/operations.py", "/deepspeed/comm/", "/torch/autograd/graph.py")
"""Files in which a rank waits for others: in a collective, or in a backward pass that gathers gradients."""
_LOOKS = 20
"""Number of checks within the timeout."""
_LONGEST_LOOK_S = 5.0
_LATE_LOOKS, _LATE_S = 4, 2.0
"""Extra time that a rank has to end itself before another rank reports its hang."""
_MORE_LOOKS = 2
"""Looks beyond the timeout before the process is judged from outside: the thread inside judges first."""
_FAR_SHARE = 0.25
"""Share of the timeout that a rank waits longer if the ranks it waits for are on other machines."""


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

    def look(self, show_life: Callable[[], object]) -> None:
        """Look from time to time, in a thread of its own, whether the rank makes progress; `show_life` each time."""
        looked_at = time.monotonic()
        most_late_s = min(_LATE_LOOKS * self.look_s + _LATE_S, self.timeout_s / 2)
        while not self.is_closed.wait(self.look_s):
            late_s, looked_at = time.monotonic() - looked_at - self.look_s, time.monotonic()
            show_life()
            beat = self.heartbeat.read()
            if late_s > most_late_s:
                self.heartbeat.beat()  # no thread ran for a while, so the whole process was stopped: start again
            elif beat.is_watched and beat.age_s > self.timeout_s:
                self._judge(beat)

    def _judge(self, own: Beat) -> None:
        if self.world_size > 1 and any(self.folder.path.glob(failure_file(self.folder, "*").name)):
            return  # a rank has reported a failure, and this one will be ended soon
        stacks = _own_stacks(self.thread)
        waits = any(one in line for line in stacks[0][-2 * _SHOWN_FRAMES :] for one in _OF_OTHERS)
        if waits:
            self.heartbeat.say_waits()
        seen = heartbeats(self.folder.path)
        behind = _furthest_behind(seen)
        far_s = self.timeout_s * _FAR_SHARE if len(seen) < self.world_size and waits else 0.0
        if behind.rank != own.rank:
            if behind.is_watched and behind.age_s > self.timeout_s + _LATE_LOOKS * self.look_s + _LATE_S + far_s:
                self._end(_failure_of(behind, (), self.timeout_s, is_stopped=is_stopped(behind.pid)))
        elif own.age_s > self.timeout_s + far_s and not any(
            one.seams == own.seams and one.age_s <= self.timeout_s for one in seen.values()
        ):  # else this rank may wait for one at the same point that still makes progress
            self._end(_failure_of(own, stacks, self.timeout_s, is_stopped=False))

    def _end(self, failure: RankFailure) -> None:
        """Report a hang and exit, without touching anything that could block on the hanging thread."""
        try:
            self._report(failure)
        finally:
            _exit(EXIT_CRASH)

    def report_silent(self, stacks: Callable[[], Stacks]) -> None:
        """Report, from another process, that something holds the GIL of this one."""
        beat = self.heartbeat.read()  # first: the signal that asks for the stacks may end the hang
        self._report(_failure_of(beat, stacks(), self.timeout_s, is_stopped=False))

    def _report(self, failure: RankFailure) -> None:
        with contextlib.suppress(OSError):  # on a full disk, still report the rest
            write_json(failure_file(self.folder, failure.rank), asdict(failure))
            with self.folder.log.open("a", encoding="utf-8") as log:
                log.write(printable(redacted(f"{failure.traceback}\n{failure.message}")) + "\n")
        if self.world_size == 1:
            self._report_alone(failure)

    def _report_alone(self, failure: RankFailure) -> None:
        """Report on the terminal and in the status that the only process of a run hangs."""
        shown = _SHOW_CURSOR if os.isatty(_STDERR) else ""
        where = f"{resume_hint(self.folder)}\nrun folder: {self.folder.shown}, whose log.txt has the whole stack"
        message = printable(redacted(f"error: {failure.message}\n{where}\n"))
        os.write(_STDERR, (shown + message).encode())  # sys.stderr may be locked by the hanging thread
        with contextlib.suppress(OSError):
            update_status(self.folder, state=FAILED, reason=failure.message, failing_rank=failure.rank)
        self.heartbeat.close()

    def suspend(self, number: int, _: FrameType | None) -> None:
        """Suspend the process, for Ctrl-Z or a scheduler: by default SIGTSTP does nothing in a session of its own."""
        os.kill(os.getpid(), signal.SIGSTOP)
        self.heartbeat.beat()


@contextlib.contextmanager
def watched(folder: RunFolder, timeout_s: float | str, rank: int) -> Iterator[Heartbeat]:
    """Open a context in which this rank has a heartbeat, and a watchdog unless the timeout is `off`."""
    heartbeat = Heartbeat(folder.path, rank)
    with ExitStack() as stack:
        stack.callback(heartbeat.close)
        if isinstance(timeout_s, float):
            world_size = int(os.environ.get("WORLD_SIZE", "1"))
            watchdog = Watchdog(folder, heartbeat, timeout_s, world_size)
            if signal.getsignal(signal.SIGTSTP) == signal.SIG_DFL:
                stack.enter_context(handled({signal.SIGTSTP: watchdog.suspend}))
            outside = watched_from_outside(
                watchdog.look_s,
                math.ceil(timeout_s / watchdog.look_s) + _MORE_LOOKS,
                lambda: heartbeat.read().is_watched,
                watchdog.report_silent,
            )
            show_life = stack.enter_context(outside)
            thread = threading.Thread(target=watchdog.look, args=[show_life], name="watchdog", daemon=True)
            thread.start()
            stack.callback(thread.join)
            stack.callback(watchdog.is_closed.set)
        yield heartbeat


def _failure_of(beat: Beat, stacks: Stacks, timeout_s: float, *, is_stopped: bool) -> RankFailure:
    """Return the failure of a rank that makes no progress, dated at its last sign of progress.

    `stacks` are those of its threads, main thread first, each a list of `file:line in function`, innermost last; empty
    if they could not be read. `is_stopped` means stopped by a signal such as SIGSTOP.
    """
    rewards = "reward " + ", ".join(map(repr, beat.rewards)) if beat.rewards else ""
    what = f"no sign of life for {beat.age_s:.{0 if beat.age_s >= 10 else 1}f} s"
    what += ": it is stopped, by a signal such as SIGSTOP" if is_stopped else f", in {rewards or beat.phase}"
    hint = "launch.hang_timeout_s=3600  # or off, where it needs that long"
    if beat.rewards:
        key = f"rewards.{beat.rewards[0]}"
        hint = f"{key}.timeout_s=60  # ends a call after so long\n{key}.isolate=true  # ends a row\n{hint}"
    error = RlhfError(
        what,
        where=f"rank {beat.rank}, {beat.phase}" + (f", {rewards}" if rewards else ""),
        got="\n".join(_innermost(stacks)) or "nothing: it could not be asked where it is",
        expected=f"that it gets on within launch.hang_timeout_s={timeout_s:g}",
        hint=hint,
    )
    told = "\n".join("\n".join(("thread:", *(f"  {line}" for line in stack))) for stack in stacks) or "  unknown"
    trace = f"rank {beat.rank} hangs; its threads, the innermost place last:\n{told}"
    return RankFailure(beat.rank, time.time() - beat.age_s, message=str(error), traceback=trace)


def _innermost(stacks: Stacks) -> list[str]:
    """Return the innermost frames, innermost last: of a running reward if there is one, else of the main thread."""
    in_rewards = [stack for stack in stacks if _is_of_rewards(stack)]
    busy = [stack for stack in in_rewards if not any(one in stack[-1] for one in _WAITING)]
    for stack in [*busy, *in_rewards, *stacks]:
        ours = [place for place, line in enumerate(stack) if any(one in line for one in _OF_REWARDS)]
        return list(stack[(ours[-1] + 1 if ours else 0) :][-_SHOWN_FRAMES:] or stack[-_SHOWN_FRAMES:])
    return []


def _own_stacks(main_thread: int) -> Stacks:
    """Return the stack of this process's main thread, then of the threads that run rewards."""
    found = {
        ident: tuple(f"{one.filename}:{one.lineno} in {one.name}" for one in traceback.extract_stack(frame))
        for ident, frame in sys._current_frames().items()
    }
    return (found.pop(main_thread), *(stack for stack in found.values() if _is_of_rewards(stack)))


def _is_of_rewards(stack: tuple[str, ...]) -> bool:
    return any(one in line for line in stack for one in _OF_REWARDS)


def _furthest_behind(seen: dict[int, Beat]) -> Beat:
    """Return the rank that the others wait for, as far as this machine can tell."""

    def place(beat: Beat) -> tuple[int, bool, bool, bool, int]:
        return beat.seams, not is_stopped(beat.pid), not beat.rewards, beat.waits, beat.rank

    return min(seen.values(), key=place)
