"""Divide the time of a training among its phases, and read the shares back from its log.

The clock listens to the phases that a rank reports (heartbeat.py): at each change of phase, all seconds since the last
change are charged to the previous phase.
"""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence

from rlhf_cli.runs import heartbeat
from rlhf_cli.tables.metrics import ELAPSED, EVALUATION, OF_REWARD, PHASES, REST, SHARE, WAITING

REWARD = "reward/"  # prefix of the timing key of a reward
_SCORING = "scoring"
_KEYS = {
    heartbeat.TRAINING: REST,
    heartbeat.DATA: "data",
    heartbeat.GENERATION: "generation",
    heartbeat.ROLLOUT: "rollout",
    heartbeat.REWARDS: _SCORING,
    heartbeat.OLD_LOGPS: "old_logps",
    heartbeat.REFERENCE_LOGPS: "reference_logps",
    heartbeat.VALUES: "values",
    heartbeat.FORWARD: "forward",
    heartbeat.LOSS: "backward",  # the backward phase excludes the forward pass and the checks
    heartbeat.CRITIC: "critic",
    heartbeat.CHECKS: "checks",
    heartbeat.CLIPPING: "optimizer",
    heartbeat.OPTIMIZER: "optimizer",
    heartbeat.LOGGING: "logging",
    heartbeat.SAVING: "saving",
    heartbeat.EVALUATION: EVALUATION,
}
"""Maps the heartbeat's phase -> key of PHASES in tables/metrics.py."""
_ON_DEVICE = frozenset({"forward", "backward", "old_logps", "reference_logps", "values", "critic", "optimizer"})
"""Phases after which a GPU may still be working."""


class PhaseClock:
    """The seconds of one rank by phase since the last `taken`, in training only.

    `settle` waits for the device's pending work, which counts for the phase that queued it; None on a CPU.
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self.settle: Callable[[], object] | None = None
        self._now = now
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._key: str | None = None
        self._at = now()
        self._rewards: Sequence[str] = ()
        self._num_waits = 0

    def hear(self, phases: tuple[str, ...]) -> None:
        """Switch to these phases, innermost last; registered as a listener of a heartbeat."""
        if self.settle is not None and self._key in _ON_DEVICE:
            self.settle()
        self._charge()
        if not phases or phases[0] in (heartbeat.LOADING, heartbeat.ENDING):
            self._key = None
        else:
            self._key = EVALUATION if heartbeat.EVALUATION in phases else _KEYS.get(phases[-1], REST)

    def run_rewards(self, names: Sequence[str]) -> None:
        """Set which rewards are running, from any thread; rewards that run concurrently share the time equally."""
        if self._key == _SCORING:  # else a reward that had timed out has just ended
            self._charge()
        self._rewards = names

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Open a context in which this rank waits for others; during evaluation the time still counts as evaluation."""
        self._charge()
        self._num_waits += 1
        try:
            yield
        finally:
            self._charge()
            self._num_waits -= 1

    def taken(self) -> dict[str, float]:
        """Return key -> seconds since the last call; rewards have keys `reward/NAME`."""
        self._charge()
        taken, self._seconds = self._seconds, defaultdict(float)
        return taken

    def _charge(self) -> None:
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


class TimeSpent:
    """The timed seconds of a log by phase (`reward/NAME` for a reward), with those of the last saving; 0 for none."""

    def __init__(self) -> None:
        self.elapsed_s = 0.0
        self.seconds: defaultdict[str, float] = defaultdict(float)

    def take(self, event: Mapping[str, object]) -> None:
        """Add a log event; one without its seconds, of a damaged log, adds nothing."""
        if not isinstance(elapsed_s := event.get(ELAPSED), int | float):
            return
        self.elapsed_s += elapsed_s
        for name, share in event.items():
            if name.startswith(SHARE) and isinstance(share, int | float):
                self.seconds[name.removeprefix(SHARE)] += share * elapsed_s

    def shares(self) -> dict[str, float]:
        """Return each phase's share, largest first; they add up to 1. {} if nothing was timed."""
        ordered = sorted(self.seconds.items(), key=lambda item: -item[1])
        return {key: seconds / self.elapsed_s for key, seconds in ordered} if self.elapsed_s > 0.0 else {}


def phase_label(key: str) -> str:
    """Return the display name of a phase."""
    reward = key.removeprefix(OF_REWARD.removeprefix(SHARE))
    return f"reward {reward}" if reward != key else PHASES.get(key, key)
