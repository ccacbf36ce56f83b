"""Scores of an experiment's rewards on rows of completions: row by row, and summarised by reward."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class SettledReward:
    """One reward of one row: as scored, after its rules, and times its weight; None if there is none."""

    raw: float | None
    effective: float | None
    weighted: float | None


@dataclass(frozen=True, slots=True)
class SettledRow:
    """One row's rewards (name -> reward) and their aggregated total.

    The total is None if no reward applies to the row, if the aggregate returned none, or if no row has a total.
    """

    total: float | None
    rewards: Mapping[str, SettledReward]


@dataclass(frozen=True)
class SettledRows:
    """Rows in order. `no_total` says why no row has its own total, or is None if they do."""

    rows: list[SettledRow]
    no_total: str | None = None


@dataclass(frozen=True, slots=True)
class ScoredPart:
    """A part of a completion, its characters [start, end), and the reward given to it alone."""

    start: int
    end: int
    text: str
    reward: float


@dataclass(frozen=True, slots=True)
class ScoredReward(SettledReward):
    """One reward of one row with details: whether its gate was open, and the error if it failed.

    `parts` are the parts that a dense reward scored separately, or None if the score is for the whole completion.
    """

    open: bool
    error: str | None
    parts: list[ScoredPart] | None = None

    def as_json(self) -> dict[str, object]:
        """Return a JSON object; `parts` is left out if it is None."""
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
    """One row of `rlhf score`."""

    rewards: Mapping[str, ScoredReward]

    def as_json(self) -> dict[str, object]:
        """Return a JSON object. `asdict` would take most of a large table's time."""
        return {"total": self.total, "rewards": {name: one.as_json() for name, one in self.rewards.items()}}


@dataclass(frozen=True)
class RewardSummary:
    """Summary of one reward over all rows. A mean is None if no row was scored.

    `open_fraction` is the share of rows with an open gate, in [0, 1]. The other fields count rows; `calls` counts those
    passed to the function.
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
    """The result of `rlhf score`: the rows in order, and a summary by reward.

    `no_total` says why no row has its own total, or is None if they do.
    """

    rows: list[ScoredRow]
    summary: dict[str, RewardSummary]
    no_total: str | None = None

    def as_json(self) -> dict[str, object]:
        """Return the object that `rlhf score --json` prints, without its rows. `no_total` is left out if it is None."""
        content: dict[str, object] = {"summary": {name: asdict(one) for name, one in self.summary.items()}}
        return content if self.no_total is None else {**content, "no_total": self.no_total}
