"""Gate rewards: one counts for a row only where another reward's raw score says so.

The form of conditioned rewards in GDPO (arXiv 2601.05242, equation 8): an easy reward is given only once a hard one is
met, so that it cannot be collected instead. Gates make a graph; rewards are evaluated in its order, and a reward is not
computed for rows its gates have closed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import Literal, Protocol

Otherwise = float | Literal["exclude"]
"""What a closed gate leaves: a number that enters the total as it is, or nothing at all for that row."""


@dataclass(frozen=True)
class Gate:
    """Open where `low <= raw score of `by` <= high`, and close where that score is missing."""

    by: str
    low: float = float("-inf")
    high: float = float("inf")
    otherwise: Otherwise = 0.0

    def is_open(self, raw: float | None) -> bool:
        """Return whether the gate is open for a row whose raw score of `by` is `raw`, None for no score."""
        return raw is not None and self.low <= raw <= self.high


class ReadsReward(Protocol):
    """Name the raw score of another reward, which is read: by a gate here, or as it stands in a configuration."""

    @property
    def by(self) -> str:
        """Return the name of the reward that is read."""
        ...


def levels(gates: Mapping[str, Sequence[ReadsReward]]) -> list[list[str]]:
    """Return the names in the order of evaluation: a level needs only the levels before it, its members are
    independent.

    `gates`: every reward's name -> its gates, which name rewards among the keys. Raises GateCycle where rewards wait
    for each other.
    """
    sorter = TopologicalSorter({name: {gate.by for gate in own} for name, own in gates.items()})
    try:
        sorter.prepare()
    except CycleError as error:
        raise GateCycle([str(name) for name in error.args[1]]) from None
    order = list(gates)
    in_order = []
    while sorter.is_active():
        ready = sorted(sorter.get_ready(), key=order.index)
        in_order.append(ready)
        sorter.done(*ready)
    return in_order


class GateCycle(ValueError):
    """Say that rewards wait for each other; `names` is the circle, its first name again at the end."""

    def __init__(self, names: list[str]) -> None:
        super().__init__(" waits for ".join(reversed(names)))
        self.names = names
