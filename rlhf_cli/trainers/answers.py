"""Hold the answers of a policy to held-out prompts, with the scores they got."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from rlhf_cli.numerics.reward_columns import RunningDeviation


@dataclass(frozen=True)
class Answer:
    """Hold one answer of the policy. `row` has the dataset's columns; `raw` and `fixed` have an entry a reward."""

    row: dict[str, object]
    completion: str | list[dict[str, object]]
    completion_ids: list[int]
    is_truncated: bool
    raw: list[float | None]
    fixed: list[float | None]


@dataclass(frozen=True)
class Answers:
    """Hold all answers of all ranks to the held-out prompts: `each` of a prompt stand together."""

    each: int
    answers: list[Answer]


SumUp = Callable[
    [dict[str, Answers], list[float], int, Mapping[str, RunningDeviation]],
    dict[str, float | None],
]
"""Given the answers by way of answering, the rewards' weights, the step and the running deviations by reward; returns
metric -> value.
"""
