"""Stop a run from outside without losing anything, and say how it can continue.

After the first signal, training continues to the end of its optimizer step and saves. The second signal interrupts at
once. If no step ends within the grace period, the process exits, and the last checkpoint is what remains.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from os import _exit  # the original: os._exit is patched while rewards run
from types import FrameType

from rlhf_cli.config.schema.run_sections import Launch
from rlhf_cli.errors import CTRL_C, EXIT_PREEMPTED, Interrupted, Preempted
from rlhf_cli.process import heard_in_time, signal_name
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.run_status import read_status

_ONE_WISH_S = 1.0  # s within which signals count as one: Slurm signals a rank and also its parent, which forwards it


class Stopping:
    """A request that this process end, `grace_s` seconds later.

    `must_save_by` is in seconds since the epoch. A thread calls `on_late(reason)` after the grace period.
    """

    def __init__(self, *, grace_s: float, must_save_by: float | None, on_late: Callable[[str], None]) -> None:
        self.reason: str | None = None  # why the process should end, or None if it should not
        self._grace_s = grace_s
        self._must_save_by = must_save_by
        self._on_late = on_late
        self.waits_for_step = False
        """Whether requests wait for the end of a step; before, a signal interrupts, as there is no progress to lose."""
        self._is_closed = False
        self._asked_at = float("-inf")
        self._timers: list[threading.Timer] = []
        if must_save_by is not None:
            self._leave_in(
                max(0.0, must_save_by - time.time()), f"it had to save by {_clock(must_save_by)}, before a step ended"
            )

    def is_due(self, longest_step_s: float) -> bool:
        """Return whether to stop now: on request, or if another step might leave no grace before the deadline."""
        deadline = self._must_save_by
        if self.reason is None and deadline is not None and time.time() + longest_step_s + self._grace_s > deadline:
            self.reason = f"it has to save by {_clock(deadline)}"
        return self.reason is not None

    def ask(self, reason: str) -> None:
        """Request an end at the next step. A repeat within a second is ignored, except Ctrl-C.

        Raise Interrupted if there is no step to wait for, and on a second request.
        """
        is_echo = reason != CTRL_C and time.monotonic() < self._asked_at + _ONE_WISH_S
        self._asked_at = time.monotonic()
        if is_echo:
            return
        is_first, self.reason = self.reason is None, reason
        if not (is_first and self.waits_for_step):
            raise Interrupted(reason)
        self._leave_in(self._grace_s, f"{reason}; no step ended within {self._grace_s:g} s")
        say_heard(reason)

    def close(self) -> None:
        """Cancel all timers; later requests interrupt, and never end the process: the training is over."""
        self._is_closed, self.waits_for_step = True, False
        for timer in self._timers:
            timer.cancel()

    def _leave_in(self, seconds: float, reason: str) -> None:
        timer = threading.Timer(seconds, self.leave, (reason,))
        timer.daemon = True
        timer.start()
        self._timers.append(timer)

    def leave(self, reason: str) -> None:
        """End the process at once; called from a thread, also while the main thread is blocked."""
        if self._is_closed:
            return
        try:
            self._on_late(reason)
        finally:
            _exit(EXIT_PREEMPTED)


@contextmanager
def stopped_by_signals(stopping: Stopping) -> Iterator[None]:
    """Open a context in which SIGTERM, SIGUSR1 and Ctrl-C ask `stopping` to end, and SIGHUP is ignored.

    A signal before the first step ends the process even while torch waits for other ranks.
    """

    def ask(number: int, _: FrameType | None) -> None:
        stopping.ask(signal_name(number))

    def leave(number: int) -> None:
        if not stopping.waits_for_step:
            stopping.leave(signal_name(number))

    asking = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
    with heard_in_time(dict.fromkeys(asking, ask) | {signal.SIGHUP: signal.SIG_IGN}, leave):
        try:
            yield
        finally:
            stopping.close()


def say_heard(reason: str) -> None:
    """Print that the request was received and what happens next."""
    below_the_bar = "\n" if sys.stderr.isatty() else ""
    text = f"{below_the_bar}{reason}: saving at the end of this step; a second one stops at once"
    print(text, file=sys.stderr, flush=True)


def _clock(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def preempted(folder: RunFolder, reason: str | None = None) -> Preempted:
    """Return the error for a stopped run: last saved step and resume command. `reason` is for its status."""
    checkpoint, go_on = folder.last_checkpoint(), f"`rlhf resume {folder.typed}`"
    saved = f"no checkpoint yet; {go_on} restarts at step 0"
    if checkpoint is not None:
        step, reached = int(checkpoint.name.rpartition("-")[2]), read_status(folder).step
        lost = f" (training was at step {reached})" if reached > step else ""
        saved = f"saved step {step}{lost}; {go_on}"
    error = Preempted(saved)
    error.reason = reason
    return error


def must_save_by(launch: Launch, environment: Mapping[str, str] = os.environ) -> float | None:
    """Return when the run must be saved, in seconds since the epoch, by `launch` or the Slurm job's end."""
    times = [datetime.fromisoformat(launch.must_save_by).timestamp()] if launch.must_save_by is not None else []
    if (end := environment.get("SLURM_JOB_END_TIME", "")).isdigit():
        times.append(float(end))
    return min(times, default=None)
