"""Read from the log events of a run how its time was divided among the phases."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from rlhf_cli.tables.metrics import ELAPSED, OF_REWARD, PHASES, SHARE


@dataclass(frozen=True)
class TimeShares:
    """The timed seconds and each phase's share of them, largest first; shares add up to 1."""

    elapsed_s: float
    shares: dict[str, float]

    def seconds(self, key: str) -> float:
        """Return the seconds of a phase (`reward/NAME` for a reward), or 0 if it never ran."""
        return self.shares.get(key, 0.0) * self.elapsed_s


def time_shares(names: Iterable[str], values: Callable[[str], Sequence[float]]) -> TimeShares | None:
    """Return the time shares over log events with these metrics, or None if nothing was timed.

    `values` returns a metric's values in the order of the events. A phase missing from an event took no time in it.
    """
    elapsed = values(ELAPSED)
    total = float(sum(elapsed))
    if total <= 0.0:
        return None
    seconds = {}
    for name in names:
        if name.startswith(SHARE):
            shares = values(name)
            at_end = elapsed[len(elapsed) - len(shares) :]
            seconds[name.removeprefix(SHARE)] = float(sum(share * of for share, of in zip(shares, at_end, strict=True)))
    ordered = sorted(seconds.items(), key=lambda item: -item[1])
    return TimeShares(total, {key: one / total for key, one in ordered})


def phase_label(key: str) -> str:
    """Return the display name of a phase."""
    reward = key.removeprefix(OF_REWARD.removeprefix(SHARE))
    return f"reward {reward}" if reward != key else PHASES.get(key, key)
