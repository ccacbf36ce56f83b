"""Divides the time of a training among its phases: each moment belongs to the innermost one, and to no other.

It listens to what a rank says of itself anyway (pulse.py), so there is no second account of what is being done. Nothing
is stopped and started: from one change to the next all seconds are given to what was being done.
"""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

from rlhf_cli.runs import pulse
from rlhf_cli.tables.step_phases import EVALUATION, REST, WAITING

REWARD = "reward/"
"""Begins the name of the time that a reward takes."""
_SCORING = "scoring"
_KEYS = {
    pulse.TRAINING: REST,
    pulse.DATA: "data",
    pulse.GENERATION: "generation",
    pulse.ROLLOUT: "rollout",
    pulse.REWARDS: _SCORING,
    pulse.OLD_LOGPS: "old_logps",
    pulse.REFERENCE_LOGPS: "reference_logps",
    pulse.VALUES: "values",
    pulse.FORWARD: "forward",
    pulse.LOSS: "backward",  # what is left of it beside the forward pass and the checks
    pulse.CRITIC: "critic",
    pulse.CHECKS: "checks",
    pulse.CLIPPING: "optimizer",
    pulse.OPTIMIZER: "optimizer",
    pulse.LOGGING: "logging",
    pulse.SAVING: "saving",
    pulse.EVALUATION: EVALUATION,
}
"""Phase as the pulse has it -> key of tables/step_phases.py."""
_UNTIMED = (pulse.LOADING, pulse.ENDING)
_ON_DEVICE = frozenset({"forward", "backward", "old_logps", "reference_logps", "values", "critic", "optimizer"})
"""Phases at whose end a GPU may still be at work."""


class PhaseClock:
    """The seconds of one rank by phase, since they were last taken. Time before and after the training is not counted.

    `settle` waits for what a device was asked to do, so that its seconds go to the phase that asked; None on a CPU.
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self.settle: Callable[[], object] | None = None
        self._now = now
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._keys: dict[tuple[str, ...], str | None] = {}
        self._key: str | None = None
        self._at = now()
        self._rewards: Sequence[str] = ()
        self._num_waits = 0

    def hear(self, phases: tuple[str, ...]) -> None:
        """Go on with these phases, the innermost last; a listener of a pulse."""
        if self.settle is not None and self._key in _ON_DEVICE:
            self.settle()
        self._charge()
        try:
            self._key = self._keys[phases]
        except KeyError:
            self._key = self._keys[phases] = _key_of(phases)

    def run_rewards(self, names: Sequence[str]) -> None:
        """Go on with these rewards running, from whichever thread; those that run at the same time share it equally."""
        if self._key == _SCORING:  # else one that was given up long ago has ended
            self._charge()
        self._rewards = names

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Open a context in which this rank waits for others; within an evaluation it is the evaluation's."""
        self._charge()
        self._num_waits += 1
        try:
            yield
        finally:
            self._charge()
            self._num_waits -= 1

    def taken(self) -> dict[str, float]:
        """Return key -> seconds since this was last called; rewards as `reward/NAME`."""
        self._charge()
        taken, self._seconds = self._seconds, defaultdict(float)
        return taken

    def _charge(self) -> None:
        """Give the time since the last change to what was being done."""
        now, key = self._now(), self._key
        passed, self._at = now - self._at, now
        if key is None:
            return
        if self._num_waits and key != EVALUATION:
            self._seconds[WAITING] += passed
        elif self._rewards and key == _SCORING:
            for name in self._rewards:
                self._seconds[f"{REWARD}{name}"] += passed / len(self._rewards)
        else:
            self._seconds[key] += passed


def _key_of(phases: tuple[str, ...]) -> str | None:
    """Return whose the time is from now on, None where nobody counts it."""
    if not phases or phases[0] in _UNTIMED:
        return None
    return EVALUATION if pulse.EVALUATION in phases else _KEYS.get(phases[-1], REST)
