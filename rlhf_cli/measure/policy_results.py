"""Holds what an evaluation measures of a policy: rewards, truncation and lengths of its answers, pass@k, win rates.

All intervals are over prompts, since the answers to one prompt are not independent of each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field

from rlhf_cli.numerics.intervals import Estimate
from rlhf_cli.runs.evaluations import GREEDY, POLICY, SAMPLED

SEEN, UNSEEN = "seen", "unseen"
"""An evaluation's prompts that were also trained on, and the others."""


def is_none(value: object) -> bool:
    """Return whether a value is None: what a file leaves out altogether."""
    return value is None


@dataclass(frozen=True)
class RewardEstimates:
    """Estimates one reward's mean: as it was scored, after its rules, and times its weight."""

    raw: Estimate
    effective: Estimate
    weighted: Estimate


@dataclass(frozen=True)
class TokenEstimate(Estimate):
    """Estimates the mean length of a completion in tokens; `max` is the longest one's."""

    max: int


@dataclass(frozen=True)
class PartEvaluation:
    """Holds what one way of answering all prompts comes to; `truncated` is the share of completions that were cut."""

    rewards: dict[str, RewardEstimates]
    total: Estimate
    truncated: Estimate
    tokens: TokenEstimate


@dataclass(frozen=True)
class Attempts:
    """Holds pass@k and maj@k of one reward, by k: one of k samples is right, or the most frequent answer of them is."""

    pass_at: Annotated[dict[int, Estimate], Field(alias="pass")]
    maj_at: Annotated[dict[int, Estimate], Field(alias="maj")]

    def by_name(self) -> dict[str, Mapping[int, Estimate]]:
        """Return both by the names they are logged under, `pass` and `maj`."""
        return {"pass": self.pass_at, "maj": self.maj_at}


@dataclass(frozen=True)
class WinRate:
    """Estimates the share of prompts on which the total beats that of the policy `against`; ties count a half.

    `sampled` is over all pairs of samples, None where nothing was sampled.
    """

    greedy: Estimate
    sampled: Annotated[Estimate | None, Field(exclude_if=is_none)]
    against: str

    def by_part(self) -> dict[str, Estimate]:
        """Return the estimates by way of answering, those that there are."""
        return {GREEDY: self.greedy, **({SAMPLED: self.sampled} if self.sampled is not None else {})}


@dataclass(frozen=True)
class ShownAnswer:
    """Holds an answer for a person to read: texts or messages, and the total reward, None where nothing was scored."""

    prompt: object
    completion: object
    total: float | None


@dataclass(frozen=True)
class SomePrompts:
    """Holds what is measured on some of the prompts: `rows` counts these."""

    rows: int
    parts: dict[str, PartEvaluation]
    attempts: dict[str, Attempts]


@dataclass(frozen=True)
class PolicyEvaluation:
    """Holds everything that is measured of a policy. `rows` counts prompts, `attempts` are by reward.

    `by_prompts` maps SEEN, the prompts that were also trained on, and UNSEEN to their figures; None unless there are
    some of both.
    `win_rate` is None without an opponent. `settings` are the arguments of generation by TRL's names, `samples` and
    `seed`; None where the trainer that generated has them. `no_total` says why no answer has a total of its own, None
    where they have.
    """

    kind: ClassVar[str] = POLICY

    rows: int
    parts: dict[str, PartEvaluation]
    attempts: dict[str, Attempts]
    win_rate: WinRate | None
    shown: list[ShownAnswer]
    settings: Annotated[dict[str, object] | None, Field(exclude_if=is_none)] = None
    no_total: Annotated[str | None, Field(exclude_if=is_none)] = None
    by_prompts: Annotated[dict[str, SomePrompts] | None, Field(exclude_if=is_none)] = None
