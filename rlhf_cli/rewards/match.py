"""Reward the whole text by comparison with a gold answer or a regular expression."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal, TypeAlias

from rlhf_cli.errors import RewardError
from rlhf_cli.rewards.completion_text import Completion, checked_columns, refused_by, text_of

RegexMode: TypeAlias = Literal["full", "search"]
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")


def _is_list(answer: object) -> str | None:
    is_list = isinstance(answer, str) and re.fullmatch(r"""(?s)\s*\[\s*["'].*["']\s*\]\s*""", answer)
    return "is a list written as text, and compared as this text" if is_list else None


@checked_columns(answer=_is_list)
def exact_match(
    completions: Sequence[Completion],
    answer: Sequence[object],
    *,
    strip: bool = True,
    ignore_case: bool = False,
    **kwargs: object,
) -> list[float | None]:
    """Score 1.0 if the completion equals the dataset's `answer`, else 0.0; None if the row has no answer.

    An answer that is a list of strings is a list of alternatives: equality with any of them is enough. A whole number
    is compared as text (`7` is not `7.0`; `numeric_answer` compares numbers), one with decimals by its value: a table
    stores the 7 beside a 2.5 or a null as 7.0, and `3.10` as 3.1.

    Args:
        answer: dataset column: a string or number, a list of alternatives, or None.
        strip: ignore white space at both ends, of both.
        ignore_case: compare case-folded (Unicode's caseless matching: `STRASSE` equals `straße`).
    """

    def plain(text: str) -> str:
        text = text.strip() if strip else text
        return text.casefold() if ignore_case else text

    def is_equal(text: str, item: object) -> bool:
        is_number = isinstance(item, float) and _NUMBER.fullmatch(text) is not None
        return float(text) == item if is_number else text == plain(str(item))

    rewards: list[float | None] = []
    for completion, gold in zip(completions, answer, strict=True):
        accepted = [item for item in (gold if isinstance(gold, list) else [gold]) if item is not None]
        text = plain(text_of(completion))
        rewards.append(float(any(is_equal(text, item) for item in accepted)) if accepted else None)
    return rewards


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except (re.error, TypeError) as error:
        what = f"the pattern is not a regular expression: {error}"
        advice = "quote it with single quotes in YAML; double quotes turn \\b into a backspace"
        raise RewardError(what, where="args.pattern", got=repr(pattern), advice=advice) from error


@refused_by(_compiled)
def regex(
    completions: Sequence[Completion], *, pattern: str, mode: RegexMode = "full", strip: bool = True, **kwargs: object
) -> list[float]:
    """Score 1.0 if the regular expression matches the completion, else 0.0.

    Args:
        pattern: Python `re` syntax. Flags are written inside it: `(?i)` ignores case, `(?s)` lets `.` match a newline.
        mode: `full` = the whole text must match; `search` = a match anywhere is enough.
        strip: ignore white space at both ends of the text.

    A pattern with nested repetition such as `(a+)+b` can take exponential time on some texts. Then the whole batch
    fails after the entry's `timeout_s`; with `isolate: true`, only that row fails.
    """
    compiled = _compiled(pattern)
    match = compiled.fullmatch if mode == "full" else compiled.search
    texts = map(text_of, completions)
    return [float(match(text.strip() if strip else text) is not None) for text in texts]
