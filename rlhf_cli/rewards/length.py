"""Reward the length of a completion: near a target, or on one side of a ramp.

Lengths are in a unit: `tokens` (the sampled ids, including the end-of-sequence token), `characters`, or `words` (split
at white space, so not for Chinese, Japanese or Thai).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Literal, TypeAlias

from annotated_types import Gt

from rlhf_cli.errors import RewardError
from rlhf_cli.rewards.checked_arguments import refused_by
from rlhf_cli.rewards.completion_text import Completion, text_of

Unit: TypeAlias = Literal["tokens", "characters", "words"]
TokenIds: TypeAlias = Sequence[Sequence[int]]


def score_length_target(length: float, *, target: float, width: float) -> float:
    """Score by a tent: 1.0 at the target, falling in a straight line to 0.0 at a distance of `width`, and 0.0 beyond.

        max(0, 1 - |length - target| / width)

    Args:
        length: of the completion.
        target: the length wanted, in the same unit.
        width: distance from the target at which the score is 0, above 0.
    """
    return max(0.0, 1.0 - abs(length - target) / width)


def score_length_ramp(length: float, *, full: float, zero: float) -> float:
    """Score by a ramp: 1.0 up to `full`, in a straight line to 0.0 at `zero`, and 0.0 beyond.

        min(1, max(0, (zero - length) / (zero - full)))

    With `full < zero` shorter is better; with `full > zero` the ramp is mirrored and longer is better.

    Args:
        length: of the completion.
        full: the length that still earns all of it, in the same unit.
        zero: the length that earns nothing; not equal to `full`.
    """
    if full == zero:
        raise RewardError(
            "the ramp has no slope: `full` and `zero` are the same length",
            where="args.zero",
            got=zero,
            expected="zero above full (shorter is better) or below it (longer is better)",
        )
    return min(1.0, max(0.0, (zero - length) / (zero - full)))


def length_target(
    completions: Sequence[Completion],
    completion_ids: TokenIds | None = None,
    *,
    target: float,
    width: Annotated[float, Gt(0)],
    unit: Unit = "tokens",
    **kwargs: object,
) -> list[float]:
    """Score 1.0 if the completion has the length `target`, falling to 0.0 at a distance of `width`.

    The other arguments are those of `score_length_target`.

    Args:
        unit: of both lengths: `tokens` (the sampled ids, the end-of-sequence token among them), `characters`, or
            `words` (split at white space, so not for Chinese, Japanese or Thai).
    """
    lengths = lengths_of(completions, completion_ids, unit)
    return [score_length_target(length, target=target, width=width) for length in lengths]


@refused_by(partial(score_length_ramp, 0.0))
def length_ramp(
    completions: Sequence[Completion],
    completion_ids: TokenIds | None = None,
    *,
    full: float,
    zero: float,
    unit: Unit = "tokens",
    **kwargs: object,
) -> list[float]:
    """Score 1.0 on the `full` side of a ramp, 0.0 on its `zero` side.

    The other arguments are those of `score_length_ramp`.

    Args:
        unit: of both lengths: `tokens` (the sampled ids, the end-of-sequence token among them), `characters`, or
            `words` (split at white space, so not for Chinese, Japanese or Thai).
    """
    return [score_length_ramp(length, full=full, zero=zero) for length in lengths_of(completions, completion_ids, unit)]


def lengths_of(completions: Sequence[Completion], completion_ids: TokenIds | None, unit: Unit) -> list[int]:
    """Return the length of each completion in `unit`. Thinking counts, whichever field holds it.

    Raises RewardError for tokens if `completion_ids` is None.
    """
    if unit == "tokens":
        if completion_ids is None:
            raise RewardError(
                "lengths in tokens need the token ids, and these completions come without",
                where="args.unit",
                got=unit,
                expected="completion_ids beside the completions",
                hint="args.unit=words or args.unit=characters",
            )
        return [len(ids) for ids in completion_ids]
    texts = [text_of(completion, reasoning=True) for completion in completions]
    return [len(text) if unit == "characters" else len(text.split()) for text in texts]
