"""Notice that a reward function ends the process it runs in, and keep it from doing so unnamed.

`sys.exit` and `raise KeyboardInterrupt` are exceptions and need only be told from a key that somebody pressed.
`os._exit` is none: it would end the run in the middle with whatever code it was given, 0 among them. While rewards run
it raises one.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

from rlhf_cli.errors import RewardFailed


class EndedProcess(BaseException):
    """Raised in the place of `os._exit(status)`: whoever calls that expects nothing of his to run afterwards."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


LEAVING = (SystemExit, KeyboardInterrupt, EndedProcess)
"""What a function raises that would leave the process, and not only fail."""


@contextmanager
def staying() -> Iterator[Callable[[], bool]]:
    """Open a context in which `os._exit` raises EndedProcess; yields whether Ctrl-C was pressed since.

    Not in a child that the reward forks: it has to end as it wants to.
    """
    _Stay.enter()
    try:
        with _noticing_interrupts() as was_interrupted:
            yield was_interrupted
    finally:
        _Stay.leave()


class _Stay:
    """Hold what stands in the place of `os._exit`, for all who are inside at once: stacks in several threads, say.

    With one replacement each, the last to leave would put back that of another, and os._exit be gone for good.
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
    """Keep the signal's handler, and note when it was called; signals reach the main thread alone."""
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
        if signal.getsignal(signal.SIGINT) is notice:  # unless the reward has set one of its own
            signal.signal(signal.SIGINT, before)


def left(reward: str, error: BaseException) -> RewardFailed:
    """Return the error that ends the run in the place of what would have ended the process."""
    words = {SystemExit: "sys.exit({})", EndedProcess: "os._exit({})", KeyboardInterrupt: "raise KeyboardInterrupt"}
    argument = error.args[0] if error.args else ""
    called = next(text for kind, text in words.items() if isinstance(error, kind)).format(argument)
    failed = RewardFailed(
        f"reward {reward!r} would have ended the process",
        where=f"rewards.{reward}",
        got=called,
        expected="scores, or an exception, for which there is on_error",
        hint=f"rewards.{reward}.isolate=true runs it in processes of its own, where this costs a row",
    )
    failed.reward = reward
    failed.__cause__ = error
    return failed
