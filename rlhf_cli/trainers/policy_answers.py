"""Hold what a policy answered in an evaluation during training."""

from __future__ import annotations

from dataclasses import dataclass

from rlhf_cli.measure.policy_results import AnsweredPrompt


@dataclass(frozen=True)
class PolicyAnswer(AnsweredPrompt):
    """One answer of the policy, with its scores: `raw` and `fixed` have one entry per reward."""

    raw: list[float | None]
    fixed: list[float | None]


@dataclass(frozen=True)
class PolicyAnswers:
    """All answers of all ranks to the held-out prompts; the `each` answers to a prompt are adjacent."""

    each: int
    answers: list[PolicyAnswer]
