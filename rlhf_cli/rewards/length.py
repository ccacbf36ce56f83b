"""Reward the length of a completion: near a target, or on one side of a ramp."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, TypeAlias

from annotated_types import Gt

from rlhf_cli.errors import RewardError
from rlhf_cli.rewards.completion_text import Completion, refused_by, text_of

Unit: TypeAlias = Literal["tokens", "characters", "words"]
TokenIds: TypeAlias = Sequence[Sequence[int]]


def length_target(
    completions: Sequence[Completion],
    completion_ids: TokenIds | None = None,
    *,
    target: float,
    width: Annotated[float, Gt(0)],
    unit: Unit = "tokens",
    **kwargs: object,
) -> list[float]:
    """Score by a tent: 1.0 at the length `target`, falling in a straight line to 0.0 at a distance of `width`.

        max(0, 1 - |length - target| / width)

    Args:
        target: the length wanted.
        width: distance from the target at which the score is 0, above 0.
        unit: of both: `tokens` (the sampled ids, the end-of-sequence token among them), `characters`, or `words` (split
            at white space, so not for Chinese, Japanese or Thai).
    """
    lengths = lengths_of(completions, completion_ids, unit)
    return [max(0.0, 1.0 - abs(length - target) / width) for length in lengths]


def _has_slope(full: float, zero: float) -> None:
    if full == zero:
        expected = "zero above full (shorter is better) or below it (longer is better)"
        raise RewardError("the ramp has no slope", where="args.zero", got=zero, expected=expected)


@refused_by(_has_slope)
def length_ramp(
    completions: Sequence[Completion],
    completion_ids: TokenIds | None = None,
    *,
    full: float,
    zero: float,
    unit: Unit = "tokens",
    **kwargs: object,
) -> list[float]:
    """Score by a ramp: 1.0 up to `full`, in a straight line to 0.0 at `zero`, and 0.0 beyond.

        min(1, max(0, (zero - length) / (zero - full)))

    With `full < zero` shorter is better; with `full > zero` the ramp is mirrored and longer is better.

    Args:
        full: the length that still earns all of it.
        zero: the length that earns nothing; not equal to `full`.
        unit: of both: `tokens`, `characters` or `words`, counted as for `length_target`.
    """
    _has_slope(full, zero)
    lengths = lengths_of(completions, completion_ids, unit)
    return [min(1.0, max(0.0, (zero - length) / (zero - full))) for length in lengths]


def lengths_of(completions: Sequence[Completion], completion_ids: TokenIds | None, unit: Unit) -> list[int]:
    """Return lengths in `unit`, thinking included. Raise RewardError for tokens if there are no `completion_ids`."""
    if unit == "tokens":
        if completion_ids is None:
            what, hint = "these completions have no token ids to count", "args.unit=words, or args.unit=characters"
            raise RewardError(what, where="args.unit", got=unit, hint=hint)
        return [len(ids) for ids in completion_ids]
    texts = [text_of(completion, reasoning=True) for completion in completions]
    return [len(text) if unit == "characters" else len(text.split()) for text in texts]
