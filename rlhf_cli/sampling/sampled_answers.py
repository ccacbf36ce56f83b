"""Sampled data: n scored answers to each prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rlhf_cli.rewards.completion_text import Completion

TOTAL = "total"
"""The score used to pick answers if no reward is named."""


@dataclass(frozen=True)
class SampledAnswer:
    """One answer to a prompt.

    `rewards` maps name -> raw score, None if a reward does not apply, failed or was gated out. `total` is None if the
    row has none. `is_truncated` says that the policy did not end the answer.
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
    """A prompt and its answers, in the order of sampling."""

    prompt: object
    answers: Sequence[SampledAnswer]
