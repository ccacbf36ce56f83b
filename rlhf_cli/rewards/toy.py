"""Reward completions of the toy worlds, which a tiny model learns in minutes on a CPU."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rlhf_cli.rewards.completion_text import Completion, last_text, text_of
from rlhf_cli.rewards.dense import Span

# Does not match the 7 or the 5 of `7.5`, nor the 2 of `x2`; the minus of `3-4` subtracts and is not a sign. More than
# 18 digits is a stuck policy: sums of the toy world are shorter, and int() of thousands of digits raises.
_INTEGER = re.compile(r"(?<![0-9A-Za-z_])(?<![0-9]\.)(?:(?<!\))-)?[0-9]{1,18}(?![0-9A-Za-z_]|\.[0-9])")


def sums_correct(
    completions: Sequence[Completion], a: Sequence[int | str], b: Sequence[int | str], **kwargs: object
) -> list[float]:
    """Score 1.0 if the last whole number in the completion is `a + b`, else 0.0; words around it do no harm.

    A number is written without thousands commas and with a minus if it is negative.

    Args:
        a: dataset column, the first summand.
        b: dataset column, the second summand.
    """
    found = [_INTEGER.findall(text_of(completion)) for completion in completions]
    rows = zip(found, a, b, strict=True)
    return [float(bool(numbers) and int(numbers[-1]) == int(one) + int(two)) for numbers, one, two in rows]


def add(a: int, b: int) -> int:
    """Add two numbers: a tool for `toy_calculator`.

    Args:
        a: The first number.
        b: The second number.
    """
    return a + b


def sums_true(prompts: Sequence[Completion], completions: Sequence[Completion], **kwargs: object) -> list[float]:
    """Score by the true reward of the world `toy_preferences`, to watch at weight 0 beside a learnt reward.

    Its parts and its range, -0.4 to 1.5, are those of `toy_tasks.true_score`.
    """
    from rlhf_cli.data.worlds.toy_tasks import true_score

    return [true_score(*row) for row in zip(map(last_text, prompts), map(text_of, completions), strict=True)]


def digits_only(completions: Sequence[Completion], **kwargs: object) -> list[float]:
    """Score 1.0 if the completion consists of digits 0 to 9, ignoring white space at its ends, else 0.0."""
    return [float(re.fullmatch("[0-9]+", text_of(completion).strip()) is not None) for completion in completions]


def score_speakers(
    text: str,
    speaker_a: str,
    speaker_b: str,
    *,
    max_value: int | None = None,
    mass: float = 1.0,
    malformed: float = -1.0,
) -> list[Span] | float:
    """Return what `speakers_larger` gives one text; [] if both numbers are equal."""
    names = "|".join(re.escape(name) for name in (speaker_a, speaker_b))
    line = re.compile(rf"^({names}): ([0-9]{{1,9}})$", re.MULTILINE)
    lines = list(line.finditer(text))
    numbers = [int(match[2]) for match in lines]
    has_form = [match[1] for match in lines] == [speaker_a, speaker_b] and not line.sub("", text).strip()
    if not has_form or (max_value is not None and max(numbers) > max_value):
        return malformed
    if numbers[0] == numbers[1]:
        return []
    signs = (1, -1) if numbers[0] > numbers[1] else (-1, 1)
    return [(match.start(), match.end(), sign * mass) for match, sign in zip(lines, signs, strict=True)]


def speakers_larger(
    completions: Sequence[Completion],
    speaker_a: Sequence[str],
    speaker_b: Sequence[str],
    *,
    max_value: Sequence[int | str] | None = None,
    mass: float = 1.0,
    malformed: float = -1.0,
    **kwargs: object,
) -> list[list[Span] | float]:
    """Give +mass to the line of the speaker with the larger number, -mass to the other's; nothing if they are equal.

    A well-formed text has the two lines `A: 4`, `B: 7`, in the order of the prompt and with only white space around
    them. A number has one to nine ASCII digits. Any other text is worth `malformed`, one number for the whole row.

    A well-formed row sums to 0 whichever number is larger. So a trainer with one number per row learns the form and no
    numbers. With one value per token and credit from the future, as in DeepSeekMath 4.1.3 (arXiv:2402.03300) or PPO
    with gamma = lambda = 1,

        tokens of the second line:   +mass if the second number is larger, -mass if the first is
        tokens of the first line:    own value + the second line's value = 0

    The second speaker has read the first number and learns to say a larger one; the first speaker's numbers do not
    change systematically. Watch the share of completions whose second number is the larger: 0.45 for random digits, at
    most 0.9 if the first speaker stays random. With `spread: even`, the first speaker learns to say a smaller number.

    Args:
        speaker_a: dataset column, the first speaker.
        speaker_b: dataset column, the second speaker.
        max_value: dataset column, the largest number a speaker may say; without it there is no limit.
        mass: of the larger line; the smaller has -mass.
        malformed: the score of a malformed row.
    """
    limits = [None] * len(completions) if max_value is None else [int(limit) for limit in max_value]
    rows = zip(completions, speaker_a, speaker_b, limits, strict=True)
    return [
        score_speakers(text_of(completion), first, second, max_value=limit, mass=mass, malformed=malformed)
        for completion, first, second, limit in rows
    ]


def second_is_larger(
    completions: Sequence[Completion], speaker_a: Sequence[str], speaker_b: Sequence[str], **kwargs: object
) -> list[float | None]:
    """Score 1.0 if the second speaker said the larger number, else 0.0; None if the completion is malformed.

    Give it the weight 0 to watch the effect of `speakers_larger`, whose own sum is always 0.
    """
    scores: list[float | None] = []
    for completion, first, second in zip(completions, speaker_a, speaker_b, strict=True):
        spans = score_speakers(text_of(completion), first, second)
        scores.append(None if isinstance(spans, float) else float(bool(spans) and spans[1][2] > 0))
    return scores


def turns_have_form(
    s1: Sequence[str], s2: Sequence[str], speaker_a: Sequence[str], speaker_b: Sequence[str], **kwargs: object
) -> list[list[float]]:
    """Score each turn 1.0 if it is its speaker's line, `A: 4`, else 0.0; for `per: turn`.

    Args:
        s1: column of the rollout, the text of the first turn.
        s2: column of the rollout, the text of the second turn.
        speaker_a: dataset column, the first speaker.
        speaker_b: dataset column, the second speaker.
    """
    numbers = zip(_said(s1, speaker_a), _said(s2, speaker_b), strict=True)
    return [[float(one is not None), float(two is not None)] for one, two in numbers]


def second_turn_larger(
    s1: Sequence[str], s2: Sequence[str], speaker_a: Sequence[str], speaker_b: Sequence[str], **kwargs: object
) -> list[list[float]]:
    """Score the second turn 1.0 if its number is larger than the first turn's, else 0.0; for `per: turn`.

    The first turn gets 0.0: whether its number was small enough is known after the second turn, and the first speaker
    learns from the rewards of later tokens alone. Arguments as in `turns_have_form`.
    """
    numbers = zip(_said(s1, speaker_a), _said(s2, speaker_b), strict=True)
    return [[0.0, float(one is not None and two is not None and two > one)] for one, two in numbers]


def _said(texts: Sequence[str], speakers: Sequence[str]) -> list[int | None]:
    """Return the digit in each speaker's line, None if the text has another form."""
    rows = zip(texts, speakers, strict=True)
    found = [re.fullmatch(rf"{re.escape(speaker)}: ([0-9])\s*", text) for text, speaker in rows]
    return [None if match is None else int(match[1]) for match in found]
