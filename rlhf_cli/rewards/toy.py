"""Rewards of the toy worlds: small enough for a tiny model on a CPU to learn in minutes."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rlhf_cli.rewards.completion import Completion, text_of

# Not the 7 or the 5 of `7.5`, nor the 2 of `x2`; the minus of `3-4` subtracts and belongs to no number.
# More than 18 digits is a stuck policy: no sum of the toy world has them, and int() of thousands of digits raises.
_INTEGER = re.compile(r"(?<![0-9A-Za-z_])(?<![0-9]\.)(?:(?<!\))-)?[0-9]{1,18}(?![0-9A-Za-z_]|\.[0-9])")
_DIGITS = re.compile(r"[0-9]+")


def score_sum(text: str, total: int) -> float:
    """1.0 if the last whole number in `text` is `total`, else 0.0; so words around the answer do no harm.

    A number is written without thousands commas and with a minus if it is negative.
    """
    found = _INTEGER.findall(text)
    return float(bool(found) and int(found[-1]) == total)


def sums_correct(
    completions: Sequence[Completion], a: Sequence[int | str], b: Sequence[int | str], **kwargs: object
) -> list[float]:
    """1.0 where the last whole number in the completion is `a + b`, else 0.0.

    Args:
        completions: one a row.
        a: dataset column, the first summand.
        b: dataset column, the second summand.
    """
    rows = zip(completions, a, b, strict=True)
    return [score_sum(text_of(completion), int(first) + int(second)) for completion, first, second in rows]


def score_digits_only(text: str) -> float:
    """1.0 if `text`, white space at its ends aside, is one or more of the digits 0 to 9 and nothing else; else 0.0."""
    return float(_DIGITS.fullmatch(text.strip()) is not None)


def digits_only(completions: Sequence[Completion], **kwargs: object) -> list[float]:
    """1.0 where the completion is a bare number without sign, words or punctuation, else 0.0."""
    return [score_digits_only(text_of(completion)) for completion in completions]
