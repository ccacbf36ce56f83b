"""Reward numeric answers, as in GSM8K: compare the completion's final number exactly with the gold one.

GSM8K (Cobbe et al. 2021, arXiv:2110.14168) ends a gold solution with `#### 72`; its own grader takes the first `####`
and compares strings. This reward compares numbers as exact rationals and accepts other answer formats too; if a model
answers more than once, its last answer counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Annotated, Literal, TypeAlias, get_args

from annotated_types import Ge

from rlhf_cli.errors import RewardError
from rlhf_cli.rewards.completion_text import Completion, text_of
from rlhf_cli.rewards.numbers import last_boxed, last_marked, last_number, only_number

Fallback: TypeAlias = Literal["last_number", "none"]


def answer_in(text: str, *, fallback: Fallback = "last_number") -> Fraction | None:
    r"""Return the number `text` gives as its answer, or None.

    The answer is the last line of the form `#### 1,234` (but not a markdown heading `#### Step 2`), else the content of
    the last closed `\boxed{...}`, else, with `fallback: last_number`, the last number of the text. A mark without a
    number or with several (`#### 3 + 4 = 7`, `\boxed{3, 4}`) cannot be read: the result is None without a fallback, so
    that listing candidates does not pay.
    """
    if fallback not in get_args(Fallback):
        raise RewardError(
            "no such fallback", where="args.fallback", got=fallback, expected=" or ".join(get_args(Fallback))
        )
    marked = last_marked(text)
    if marked is None:
        marked = last_boxed(text)
    if marked is not None:
        return only_number(marked)
    return last_number(text) if fallback == "last_number" else None


def gold_number(answer: object) -> Fraction | None:
    r"""Return the gold value of a number, of text that is a number, or of a solution with `#### x` or `\boxed{x}`.

    Returns None for anything else.
    """
    if answer is None or isinstance(answer, bool):
        return None
    text = str(answer)
    marked = last_marked(text)
    if marked is None:
        marked = last_boxed(text)
    return only_number(text if marked is None else marked)


def score_numeric(text: str, gold: Fraction, *, tolerance: float = 0.0, fallback: Fallback = "last_number") -> float:
    """Score 1.0 if the number that `text` settles on is within `tolerance` of `gold`, else 0.0; 0.0 without a number.

    Args:
        text: what the policy wrote.
        gold: the right value, from `gold_number`.
        tolerance: largest absolute difference that still counts, in the unit of the answer; 0 compares exactly.
        fallback: what to read when the answer is not marked; see `answer_in`.
    """
    if tolerance < 0:
        raise RewardError(
            "a tolerance below zero accepts nothing", where="args.tolerance", got=tolerance, expected="0 or more"
        )
    value = answer_in(text, fallback=fallback)
    if value is None or tolerance == 0:
        return float(value == gold)
    # Through str: a YAML 0.01 means one hundredth, not the nearest binary float.
    return float(abs(value - gold) <= Fraction(str(tolerance)))


def numeric_answer(
    completions: Sequence[Completion],
    answer: Sequence[object],
    *,
    tolerance: Annotated[float, Ge(0)] = 0.0,
    fallback: Fallback = "last_number",
    **kwargs: object,
) -> list[float | None]:
    """Score 1.0 where the completion's number equals the gold one, else 0.0; None where the gold cannot be read.

    What counts as a number is in `rewards/numbers.py`: thousands commas, currency and percent signs, units, a leading
    `+`, decimals, exponents, fractions and mixed numbers. `50%` is 50, as in GSM8K, and `2 million` is 2.

    Args:
        completions: one a row.
        answer: dataset column: the number, or the whole gold solution ending in `#### 1,234`.
        tolerance: largest absolute difference that still counts.
        fallback: `last_number` or `none`, for a completion that marks no answer.
    """
    rewards: list[float | None] = []
    for completion, value in zip(completions, answer, strict=True):
        gold = gold_number(value)
        if gold is None:
            rewards.append(None)
        else:
            rewards.append(score_numeric(text_of(completion), gold, tolerance=tolerance, fallback=fallback))
    return rewards
