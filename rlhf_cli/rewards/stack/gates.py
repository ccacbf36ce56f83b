"""Gate rewards: a reward counts for a row only if another reward's raw score is within bounds.

These are the conditioned rewards of GDPO (arXiv 2601.05242, equation 8): an easy reward is given only if a hard one is
met, so that the policy cannot collect the easy one instead. Gates form a graph. Rewards are evaluated in its
topological order, and not computed for rows that their gates closed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import Literal

Otherwise = float | Literal["exclude"]
"""Result of a closed gate: a number that enters the total unchanged, or exclusion of the row."""


@dataclass(frozen=True)
class ScoreGate:
    """A gate that is open if `low <= raw score of `by` <= high`, and closed if that score is missing."""

    by: str
    low: float = float("-inf")
    high: float = float("inf")
    otherwise: Otherwise = 0.0

    def is_open(self, raw: float | None) -> bool:
        """Return whether the gate is open for a row whose raw score of `by` is `raw` (None for no score)."""
        return raw is not None and self.low <= raw <= self.high


def levels(reads: Mapping[str, Collection[str]]) -> list[list[str]]:
    """Return the names in order of evaluation; each level needs only the levels before it.

    The members of a level are independent. `reads` maps each reward to the rewards that its gates read, which are among
    the keys. Raise GateCycle if rewards wait for each other.
    """
    sorter = TopologicalSorter(reads)
    try:
        sorter.prepare()
    except CycleError as error:
        raise GateCycle([str(name) for name in error.args[1]]) from None
    order = list(reads)
    in_order = []
    while sorter.is_active():
        ready = sorted(sorter.get_ready(), key=order.index)
        in_order.append(ready)
        sorter.done(*ready)
    return in_order


class GateCycle(ValueError):
    """Raised if rewards wait for each other; `names` is the cycle, with the first name repeated at the end."""

    def __init__(self, names: list[str]) -> None:
        super().__init__(" waits for ".join(reversed(names)))
        self.names = names
