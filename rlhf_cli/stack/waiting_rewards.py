"""Decide which rewards may run in threads beside others: those that wait and need no interruption.

A reward that computes does not gain from a thread, and can do harm there: a regular expression that matches forever
holds the interpreter lock, and only in the main thread does it check for the deadline's signal (see deadline.py).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable

from rlhf_cli.stack.component import Outcome
from rlhf_cli.stack.isolated import Isolated

_WORTH_A_THREAD_S = 0.005
"""A reward that waits less than this per call gains less than a thread costs."""

_MOST_OF_THE_TIME = 4.0
"""A waiting reward waits at least this many times as long as it computes, over all calls.

On a busy machine, a reward that only computes also seems to wait: for the interpreter lock, or for the next slice of a
container's CPU quota. Beside eight other programs on two cores, a reward of a few milliseconds waited for up to 80 ms
per call.
"""


class WaitingRewards:
    """How long each reward has waited and computed so far."""

    def __init__(self) -> None:
        self._waited_s: dict[str, float] = {}
        self._busy_s: dict[str, float] = {}
        self._calls: dict[str, int] = {}
        self._interrupted: set[str] = set()

    def add(self, name: str, outcome: Outcome) -> None:
        """Count a call unless all gates were closed; a reward that timed out may need another interruption."""
        if not outcome.calls:
            return
        self._waited_s[name] = self._waited_s.get(name, 0.0) + outcome.seconds - outcome.busy_s
        self._busy_s[name] = self._busy_s.get(name, 0.0) + outcome.busy_s
        self._calls[name] = self._calls.get(name, 0) + 1
        if outcome.timeouts:
            self._interrupted.add(name)

    def waits(self, name: str, score: Callable[..., object]) -> bool:
        """Return whether this reward waits; before its first timing, assume so if it is async or isolated.

        Those two compute elsewhere, so they need no interruption in this thread.
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
