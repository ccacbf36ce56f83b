"""Reward the whole text by comparison with a gold answer or a regular expression."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from typing import Literal, TypeAlias

from rlhf_cli.errors import Prose, RewardError
from rlhf_cli.rewards.checked_arguments import refused_by
from rlhf_cli.rewards.completion_text import Completion, text_of

RegexMode: TypeAlias = Literal["full", "search"]


def score_exact(text: str, answer: str, *, strip: bool = True, ignore_case: bool = False) -> float:
    """Score 1.0 if `text` equals `answer`, else 0.0.

    Args:
        text: what the policy wrote.
        answer: what it should have written.
        strip: ignore white space at both ends, of both.
        ignore_case: compare case-folded (Unicode's caseless matching: `STRASSE` equals `straße`).
    """
    if strip:
        text, answer = text.strip(), answer.strip()
    if ignore_case:
        text, answer = text.casefold(), answer.casefold()
    return float(text == answer)


def exact_match(
    completions: Sequence[Completion],
    answer: Sequence[object],
    *,
    strip: bool = True,
    ignore_case: bool = False,
    **kwargs: object,
) -> list[float | None]:
    """Score 1.0 if the completion equals the dataset's `answer`, else 0.0; None if the row has no answer.

    An answer that is a list of strings is a list of alternatives: equality with any of them is enough. Numbers are
    compared as text (`7` is not `7.0`; `numeric_answer` compares numbers).

    Args:
        completions: one per row.
        answer: dataset column: a string or number, a list of alternatives, or None.
        strip: ignore white space at both ends.
        ignore_case: compare case-folded.
    """
    rewards: list[float | None] = []
    for completion, gold in zip(completions, answer, strict=True):
        accepted = [str(item) for item in (gold if isinstance(gold, list) else [gold]) if item is not None]
        text = text_of(completion)
        scores = [score_exact(text, item, strip=strip, ignore_case=ignore_case) for item in accepted]
        rewards.append(max(scores, default=None))
    return rewards


def score_regex(text: str, pattern: str, *, mode: RegexMode = "full", strip: bool = True) -> float:
    """Score 1.0 if the regular expression matches `text`, else 0.0. Raises RewardError for a malformed expression.

    Args:
        text: what the policy wrote.
        pattern: Python `re` syntax. Flags are written inside it: `(?i)` ignores case, `(?s)` lets `.` match a newline.
        mode: `full` = the whole text must match; `search` = a match anywhere is enough.
        strip: ignore white space at both ends of the text.

    A pattern with nested repetition such as `(a+)+b` can take exponential time on some texts. Then the whole batch
    fails after the entry's `timeout_s`; with `isolate: true`, only that row fails.
    """
    compiled = _compiled(pattern)
    if strip:
        text = text.strip()
    match = compiled.fullmatch(text) if mode == "full" else compiled.search(text)
    return float(match is not None)


@refused_by(partial(score_regex, ""))
def regex(
    completions: Sequence[Completion], *, pattern: str, mode: RegexMode = "full", strip: bool = True, **kwargs: object
) -> list[float]:
    """Score 1.0 if the regular expression matches the completion, else 0.0. Arguments as in `score_regex`."""
    return [score_regex(text_of(completion), pattern, mode=mode, strip=strip) for completion in completions]


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)  # `re` keeps the last 512 patterns, so this compiles once
    except (re.error, TypeError) as error:
        raise RewardError(
            f"the pattern is not a regular expression: {error}",
            where="args.pattern",
            got=repr(pattern),
            expected="Python `re` syntax",
            hint=Prose("quote it with single quotes in YAML; double quotes turn \\b into a backspace"),
        ) from error
