"""Reward format tags: reasoning and answer in the requested markup, `<think>...</think><answer>...</answer>`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from rlhf_cli.errors import RewardError
from rlhf_cli.rewards.completion_text import Completion, refused_by, text_of

DEFAULT_TAGS = ("think", "answer")
"""The tags in the template of DeepSeek-R1-Zero (arXiv:2501.12948, table 1)."""


def _check(tags: Sequence[str]) -> None:
    if isinstance(tags, str) or not tags or len(set(tags)) != len(tags):
        what, expected = "the tags are not a list of different names", "one name or more, without brackets"
        raise RewardError(what, where="args.tags", got=tags, expected=expected)


@refused_by(_check)
def format_tags(
    completions: Sequence[Completion],
    *,
    tags: Sequence[str] = DEFAULT_TAGS,
    mode: Literal["strict", "soft"] = "strict",
    prefilled: bool = False,
    **kwargs: object,
) -> list[float]:
    """Score how well the completion keeps to `<a>...</a><b>...</b>`, between 0.0 and 1.0.

    A tag is *in place* when its opening and its closing mark each occur exactly once, in that order, after the end of
    the tags before it that are in place. The text between the marks may be empty: pair this with a reward for content.
    This reads the content of the messages. If the tokenizer has a response parser that moves the thinking out of the
    content, the content has no think tags.

    Args:
        tags: names, in the order wanted.
        mode: `strict` = 1.0 if all tags are in place and only white space is outside them, else 0.0. `soft` = the share
            of the tags that are in place, with any text outside; this gives some credit early in training.
        prefilled: the prompt already ends with the first opening mark, as with some chat templates. The policy then
            does not write it, and without this option would never score.
    """
    _check(tags)
    # With every mark present exactly once, the pattern cannot backtrack far.
    blocks = r"\s*".join(rf"<{re.escape(tag)}>.*?</{re.escape(tag)}>" for tag in tags)
    pattern = re.compile(rf"\s*{blocks}\s*", re.DOTALL)

    def score(text: str) -> float:
        if mode == "soft":
            return _num_in_place(text, tags) / len(tags)
        return float(_num_in_place(text, tags) == len(tags) and pattern.fullmatch(text) is not None)

    opening = f"<{tags[0]}>" if prefilled else ""
    return [score(opening + text_of(completion)) for completion in completions]


def _num_in_place(text: str, tags: Sequence[str]) -> int:
    num_in_place, end = 0, 0
    for tag in tags:
        opening, closing = f"<{tag}>", f"</{tag}>"
        if text.count(opening) != 1 or text.count(closing) != 1:
            continue
        start, stop = text.index(opening), text.index(closing)
        if end <= start < stop:
            num_in_place, end = num_in_place + 1, stop + len(closing)
    return num_in_place
