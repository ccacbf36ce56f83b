"""Holds what was sampled: n scored answers to each prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rlhf_cli.rewards.completion_text import Completion

TOTAL = "total"
"""Names the score that answers are picked by where no reward is named."""


@dataclass(frozen=True)
class SampledAnswer:
    """Holds one answer to a prompt.

    `rewards` are the raw scores by name, None where a reward does not apply, failed or was gated out; `total` is None
    where the row has none. `is_truncated`: the policy did not end it.
    """

    completion: Completion
    rewards: Mapping[str, float | None]
    total: float | None
    is_truncated: bool

    def score(self, by: str) -> float | None:
        """Return the total, or the raw score of the reward `by`."""
        return self.total if by == TOTAL else self.rewards[by]


@dataclass(frozen=True)
class SampledPrompt:
    """Holds a prompt and its answers, in the order in which they were sampled."""

    prompt: object
    answers: Sequence[SampledAnswer]
