"""Which rewards may run in threads beside others: those that wait, which nothing has to interrupt.

What computes gains nothing from a thread. It is a danger there, too: a regular expression that matches for ever holds
the interpreter, and only in the main thread does it look for the signal of a deadline (see deadline.py).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable

from rlhf_cli.stack.component import Outcome
from rlhf_cli.stack.isolated import Isolated

_WORTH_A_THREAD_S = 0.005
"""Whoever waits for less than this a call gains less than a thread costs."""

_MOST_OF_THE_TIME = 4.0
"""Whoever waits, waits for so many times as long as it computes, over all calls.

One that only computes seems to wait as well, where the process gets no processor: for the interpreter that another
thread left off with, or for the next slice of a container's quota: beside eight other programs on two cores one of a
few milliseconds waited for up to 80 in a call.
"""


class WaitingRewards:
    """Remember for how long each reward has waited and computed."""

    def __init__(self) -> None:
        self._waited_s: dict[str, float] = {}
        self._busy_s: dict[str, float] = {}
        self._calls: dict[str, int] = {}
        self._interrupted: set[str] = set()

    def add(self, name: str, outcome: Outcome) -> None:
        """Count a call, unless closed gates left nothing to ask; who had to be interrupted can have to be so again."""
        if not outcome.calls:
            return
        self._waited_s[name] = self._waited_s.get(name, 0.0) + outcome.seconds - outcome.busy_s
        self._busy_s[name] = self._busy_s.get(name, 0.0) + outcome.busy_s
        self._calls[name] = self._calls.get(name, 0) + 1
        if outcome.timeouts:
            self._interrupted.add(name)

    def waits(self, name: str, score: Callable[..., object]) -> bool:
        """Return whether this reward waits; one that nobody has timed yet does if it is async or isolated.

        Those two compute elsewhere, so that nothing is to be interrupted here.
        """
        is_elsewhere = isinstance(score, Isolated) or any(
            map(inspect.iscoroutinefunction, (score, type(score).__call__))
        )
        if name not in self._calls:
            return is_elsewhere
        waited_s, least_s = self._waited_s[name], _WORTH_A_THREAD_S * self._calls[name]
        if is_elsewhere:
            return waited_s >= least_s
        return name not in self._interrupted and waited_s >= max(least_s, _MOST_OF_THE_TIME * self._busy_s[name])
