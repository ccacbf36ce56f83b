"""Dataclasses for a policy's evaluation: rewards, truncation, lengths, pass@k and win rates.

All intervals are over prompts, because the answers to one prompt are not independent of each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field

from rlhf_cli.numerics.intervals import Estimate
from rlhf_cli.runs.evaluations import GREEDY, POLICY, SAMPLED

SEEN, UNSEEN = "seen", "unseen"
"""The evaluation's prompts that were also trained on, and the others."""


def is_none(value: object) -> bool:
    """Return whether a value is None. Such values are left out of a file."""
    return value is None


@dataclass(frozen=True)
class RewardEstimates:
    """Mean of one reward: as scored, after its rules, and times its weight."""

    raw: Estimate
    effective: Estimate
    weighted: Estimate


@dataclass(frozen=True)
class TokenEstimate(Estimate):
    """Mean length of a completion in tokens; `max` is the longest length."""

    max: int


@dataclass(frozen=True)
class PartEvaluation:
    """Results of one decoding mode on all prompts; `truncated` is the share of completions that were cut."""

    rewards: dict[str, RewardEstimates]
    total: Estimate
    truncated: Estimate
    tokens: TokenEstimate


@dataclass(frozen=True)
class Attempts:
    """The pass@k and maj@k of one reward, by k: one of k samples is right, or their most frequent answer is."""

    pass_at: Annotated[dict[int, Estimate], Field(alias="pass")]
    maj_at: Annotated[dict[int, Estimate], Field(alias="maj")]

    def by_name(self) -> dict[str, Mapping[int, Estimate]]:
        """Return both by their logged names, `pass` and `maj`."""
        return {"pass": self.pass_at, "maj": self.maj_at}


@dataclass(frozen=True)
class WinRate:
    """The share of prompts on which the total beats that of the policy `against`. Ties count a half.

    `sampled` is over all pairs of samples, None if nothing was sampled.
    """

    greedy: Estimate
    sampled: Annotated[Estimate | None, Field(exclude_if=is_none)]
    against: str

    def by_part(self) -> dict[str, Estimate]:
        """Return the existing estimates by decoding mode."""
        return {GREEDY: self.greedy, **({SAMPLED: self.sampled} if self.sampled is not None else {})}


@dataclass(frozen=True)
class ShownAnswer:
    """An answer to show: texts or messages, and the total reward (None if not scored)."""

    prompt: object
    completion: object
    total: float | None


@dataclass(frozen=True)
class SomePrompts:
    """Results on some of the prompts; `rows` is their number."""

    rows: int
    parts: dict[str, PartEvaluation]
    attempts: dict[str, Attempts]


@dataclass(frozen=True)
class PolicyEvaluation:
    """All results of evaluating a policy. `rows` counts prompts; `attempts` is keyed by reward.

    `by_prompts` maps SEEN (prompts that were also trained on) and UNSEEN to their results; it is None unless both
    occur. `win_rate` is None without an opponent. `settings` are the generation arguments under TRL's names, `samples`
    and `seed`; it is None for an evaluation during training, because the trainer holds them. `no_total` says why no
    answer has its own total, or is None if they do.
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
