"""Lets a run be stopped from outside without losing anything: signals, and a time by which it has to be saved.

The first signal asks: training goes on to the end of its optimizer step and saves. The second interrupts at once. Asked
too late for a step to end within the grace, the process leaves with what the last checkpoint holds.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from os import _exit  # what stands in its place while rewards run is for rewards
from types import FrameType

from rlhf_cli.errors import CTRL_C, EXIT_PREEMPTED, Interrupted

_ONE_WISH_S = 1.0
"""Signals within so short a time are one wish: Slurm tells a rank, and its parent, which hands that on, as well."""
_ASKING = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)


class Stopping:
    """The wish that this process come to an end, and how long it may take.

    `grace_s` is the time from the wish to the end. `must_save_by` is in seconds since the epoch, None for never.
    `on_late(reason)` says that the grace is over, before the process leaves; it is called from a thread.
    """

    def __init__(self, *, grace_s: float, must_save_by: float | None, on_late: Callable[[str], None]) -> None:
        self.reason: str | None = None
        """Why the process is to end; None while nobody asked."""
        self._grace_s = grace_s
        self._must_save_by = must_save_by
        self._on_late = on_late
        self._waits_for_step = False
        self._asked_at = float("-inf")
        self._timers: list[threading.Timer] = []
        if must_save_by is not None:
            self._leave_in(max(0.0, must_save_by - time.time()), f"it had to be saved by {_clock(must_save_by)}")

    def steps_begin(self) -> None:
        """Say that from now on there are steps to wait for. Until then the first signal interrupts: nothing is lost."""
        self._waits_for_step = True

    def is_due(self, longest_step_s: float) -> bool:
        """Return whether to stop now: somebody asked, or another such step might leave no grace before the deadline."""
        deadline = self._must_save_by
        if self.reason is None and deadline is not None and time.time() + longest_step_s + self._grace_s > deadline:
            self.reason = f"it has to be saved by {_clock(deadline)}"
        return self.reason is not None

    def ask(self, reason: str) -> None:
        """Ask for an end at the next step, as the first signal does. Raises Interrupted where there is none to wait
        for, and when it is asked a second time. What comes right after another, and is no key, is that other's echo.
        """
        is_echo = reason != CTRL_C and time.monotonic() < self._asked_at + _ONE_WISH_S
        self._asked_at = time.monotonic()
        if is_echo:
            return
        is_first, self.reason = self.reason is None, reason
        if not (is_first and self._waits_for_step):
            raise Interrupted(reason)
        self._leave_in(self._grace_s, reason)
        say_heard(reason)

    def close(self) -> None:
        """Let nothing of this happen any more."""
        for timer in self._timers:
            timer.cancel()

    def _leave_in(self, seconds: float, reason: str) -> None:
        timer = threading.Timer(seconds, self._leave, (reason,))
        timer.daemon = True
        timer.start()
        self._timers.append(timer)

    def _leave(self, reason: str) -> None:
        try:
            self._on_late(reason)
        finally:
            _exit(EXIT_PREEMPTED)


@contextmanager
def stopped_by_signals(stopping: Stopping) -> Iterator[None]:
    """Open a context in which SIGTERM, SIGUSR1 and Ctrl-C ask `stopping`, and a terminal that closes (SIGHUP) does not
    end the process. Outside of the main thread signals stay as they are.
    """

    def ask(number: int, _: FrameType | None) -> None:
        stopping.ask(CTRL_C if number == signal.SIGINT else signal.Signals(number).name)

    with handled(dict.fromkeys(_ASKING, ask) | {signal.SIGHUP: signal.SIG_IGN}):
        try:
            yield
        finally:
            stopping.close()


@contextmanager
def interrupted_by_signals() -> Iterator[None]:
    """Open a context in which SIGTERM and SIGUSR1 raise Interrupted, as a key does: there is nothing to save yet."""

    def interrupt(number: int, _: FrameType | None) -> None:
        raise Interrupted(signal.Signals(number).name)

    with handled({signal.SIGTERM: interrupt, signal.SIGUSR1: interrupt, signal.SIGHUP: signal.SIG_IGN}):
        yield


Handler = Callable[[int, FrameType | None], object] | int


@contextmanager
def handled(handlers: Mapping[signal.Signals, Handler]) -> Iterator[None]:
    """Open a context in which these signals are handled so; in a thread other than the main one nothing is changed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def say_heard(reason: str) -> None:
    """Tell whoever asked that he was heard, and what happens now."""
    below_the_bar = "\n" if sys.stderr.isatty() else ""
    text = f"{below_the_bar}{reason}: saving at the end of this step; once more ends it at once"
    print(text, file=sys.stderr, flush=True)


def _clock(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
