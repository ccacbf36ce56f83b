"""Detect a reward function that ends its process, and turn that into an error that names the reward.

`sys.exit` and `raise KeyboardInterrupt` are exceptions, and only need to be told apart from Ctrl-C. `os._exit` raises
nothing: it would end the run at once with any exit code, even 0. While rewards run, it is replaced by a function that
raises.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

from rlhf_cli.errors import Prose, RewardFailed


class EndedProcess(BaseException):
    """Raised instead of `os._exit(status)`; a BaseException, so that as little user code as possible runs after it."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


LEAVING = (SystemExit, KeyboardInterrupt, EndedProcess)
"""Exceptions that are meant to leave the process."""


@contextmanager
def staying() -> Iterator[Callable[[], bool]]:
    """Make `os._exit` raise EndedProcess in this context; yield a function that tells whether Ctrl-C was pressed.

    A child process that the reward forks keeps the real `os._exit`.
    """
    _Stay.enter()
    try:
        with _noticing_interrupts() as was_interrupted:
            yield was_interrupted
    finally:
        _Stay.leave()


class _Stay:
    """The replacement of `os._exit`, shared by all active contexts, for example stacks in several threads.

    With one replacement per context, the last to leave could restore another's replacement and lose os._exit for good.
    """

    _lock = threading.Lock()
    _inside = 0
    _end = os._exit

    @classmethod
    def enter(cls) -> None:
        with cls._lock:
            cls._inside += 1
            if cls._inside == 1:
                cls._end = end = os._exit
                owner = os.getpid()

                def stay(status: int) -> NoReturn:
                    if os.getpid() != owner:
                        end(status)
                    raise EndedProcess(status)

                os._exit = stay

    @classmethod
    def leave(cls) -> None:
        with cls._lock:
            cls._inside -= 1
            if cls._inside == 0:
                os._exit = cls._end


@contextmanager
def _noticing_interrupts() -> Iterator[Callable[[], bool]]:
    """Keep the signal handler, and record its calls; only the main thread receives signals."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield lambda: False
        return
    seen: list[int] = []

    def notice(number: int, frame: object) -> object:
        seen.append(number)
        return before(number, frame)  # type: ignore[arg-type]

    signal.signal(signal.SIGINT, notice)
    try:
        yield lambda: bool(seen)
    finally:
        if signal.getsignal(signal.SIGINT) is notice:  # unless the reward installed its own
            signal.signal(signal.SIGINT, before)


def left(reward: str, error: BaseException) -> RewardFailed:
    """Return the error that ends the run instead of the function's attempt to end the process."""
    words = {SystemExit: "sys.exit({})", EndedProcess: "os._exit({})", KeyboardInterrupt: "raise KeyboardInterrupt"}
    argument = error.args[0] if error.args else ""
    called = next(text for kind, text in words.items() if isinstance(error, kind)).format(argument)
    failed = RewardFailed(
        f"reward {reward!r} would have ended the process",
        where=f"rewards.{reward}",
        got=called,
        expected="scores, or an exception, for which there is on_error",
        hint=Prose(f"rewards.{reward}.isolate=true runs it in processes of its own, where this costs a row"),
    )
    failed.reward = reward
    failed.__cause__ = error
    return failed
