"""A policy's answers to held-out prompts with their scores."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from rlhf_cli.numerics.reward_columns import RunningDeviation


@dataclass(frozen=True)
class Answer:
    """One answer of the policy. `row` has the dataset's columns; `raw` and `fixed` have one entry per reward."""

    row: dict[str, object]
    completion: str | list[dict[str, object]]
    completion_ids: list[int]
    is_truncated: bool
    raw: list[float | None]
    fixed: list[float | None]


@dataclass(frozen=True)
class Answers:
    """All answers of all ranks to the held-out prompts; the `each` answers to a prompt are adjacent."""

    each: int
    answers: list[Answer]


SumUp = Callable[
    [dict[str, Answers], list[float], int, Mapping[str, RunningDeviation]],
    dict[str, float | None],
]
"""Compute metric -> value from the answers by sampling mode, reward weights, step and running deviations by reward."""
