"""Divide the time of a training among its phases, and read the shares back from its log.

The clock listens to the phases that a rank reports (heartbeat.py): at each change of phase, all seconds since the last
change are charged to the previous phase.
"""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from rlhf_cli.runs import heartbeat
from rlhf_cli.tables.metrics import ELAPSED, EVALUATION, OF_REWARD, PHASES, REST, SHARE, WAITING

REWARD = "reward/"
"""Prefix of the timing key of a reward."""
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


@dataclass(frozen=True)
class TimeShares:
    """The timed seconds and each phase's share of them, largest first; shares add up to 1."""

    elapsed_s: float
    shares: dict[str, float]

    def seconds(self, key: str) -> float:
        """Return the seconds of a phase (`reward/NAME` for a reward), or 0 if it never ran."""
        return self.shares.get(key, 0.0) * self.elapsed_s


def time_shares(names: Iterable[str], values: Callable[[str], Sequence[float]]) -> TimeShares | None:
    """Return the shares over log events, None if nothing was timed; `values` returns those of a metric."""
    elapsed = values(ELAPSED)
    total = float(sum(elapsed))
    if total <= 0.0:
        return None
    seconds = {}
    for name in names:
        if name.startswith(SHARE):
            # A phase may begin late, so its values belong to the last events.
            latest = zip(reversed(values(name)), reversed(elapsed), strict=False)
            seconds[name.removeprefix(SHARE)] = float(sum(share * of for share, of in latest))
    ordered = sorted(seconds.items(), key=lambda item: -item[1])
    return TimeShares(total, {key: one / total for key, one in ordered})


def phase_label(key: str) -> str:
    """Return the display name of a phase."""
    reward = key.removeprefix(OF_REWARD.removeprefix(SHARE))
    return f"reward {reward}" if reward != key else PHASES.get(key, key)
