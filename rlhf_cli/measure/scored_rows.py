"""Holds what the rewards of an experiment come to on rows of completions: row by row, and a summary by reward."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class SettledReward:
    """Holds one reward of one row: as scored, after its rules, and times its weight; None where there is none."""

    raw: float | None
    effective: float | None
    weighted: float | None


@dataclass(frozen=True, slots=True)
class SettledRow:
    """Holds one row's rewards by name and the total that the aggregate makes of them.

    It is None where no reward applies to the row, where the aggregate gave none, or where no row has one.
    """

    total: float | None
    rewards: Mapping[str, SettledReward]


@dataclass(frozen=True)
class SettledRows:
    """Holds rows in their order; `no_total` says why none of them has a total of its own, None where they have."""

    rows: list[SettledRow]
    no_total: str | None = None


@dataclass(frozen=True, slots=True)
class ScoredPart:
    """Holds a part of a completion, its characters [start, end), and the reward that it was given by itself."""

    start: int
    end: int
    text: str
    reward: float


@dataclass(frozen=True, slots=True)
class ScoredReward(SettledReward):
    """Holds one reward of one row and how it came about: whether its gate was open, and the error where it failed.

    `parts` of the completion that a dense reward gave values of their own; None where the score is of the whole.
    """

    open: bool
    error: str | None
    parts: list[ScoredPart] | None = None

    def as_json(self) -> dict[str, object]:
        """Return the object that stands in JSON, field by field; `parts` where there are any."""
        content: dict[str, object] = {
            "raw": self.raw,
            "effective": self.effective,
            "weighted": self.weighted,
            "open": self.open,
            "error": self.error,
        }
        return content if self.parts is None else {**content, "parts": [asdict(part) for part in self.parts]}


@dataclass(frozen=True, slots=True)
class ScoredRow(SettledRow):
    """Holds one row of `rlhf score`."""

    rewards: Mapping[str, ScoredReward]

    def as_json(self) -> dict[str, object]:
        """Return the object that stands in JSON. `asdict` would take most of a large table's time."""
        return {"total": self.total, "rewards": {name: one.as_json() for name, one in self.rewards.items()}}


@dataclass(frozen=True)
class RewardSummary:
    """Sums one reward up over all rows. A mean is None where no row was scored.

    `open_fraction` is the share of rows whose gate was open, in [0, 1]; the others count rows, `calls` those that the
    function was given.
    """

    mean: float | None
    effective_mean: float | None
    weighted_mean: float | None
    open_fraction: float
    excluded: int
    errors: int
    calls: int


@dataclass(frozen=True)
class CompletionScores:
    """Holds everything that `rlhf score` says: the rows in their order, and the summary by reward.

    `no_total` says why no row has a total of its own, None where they have.
    """

    rows: list[ScoredRow]
    summary: dict[str, RewardSummary]
    no_total: str | None = None

    def as_json(self) -> dict[str, object]:
        """Return the object that `rlhf score --json` prints but its rows; `no_total` is in it where there is one."""
        content: dict[str, object] = {"summary": {name: asdict(one) for name, one in self.summary.items()}}
        return content if self.no_total is None else {**content, "no_total": self.no_total}
