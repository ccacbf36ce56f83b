"""Split a completion into parts, for authors of dense rewards. Does not import torch."""

from __future__ import annotations

import re
from typing import Literal, TypeAlias

from rlhf_cli.errors import RewardError

Span: TypeAlias = tuple[int, int, float]
"""A span is `(start, end, value)`: the characters start to end, end excluded, and the value of the whole span."""

_CLOSING = r"[\"')\]}”’»」』）】*_]"
_BETWEEN_LINES = re.compile(r"\r\n|[\n\r]")
# Match runs as a whole (lookbehind, `++`): a text that consists of dots only must not take quadratic time.
_SENTENCE_END = re.compile(rf"(?<![.!?…])[.!?…]++{_CLOSING}*+(?=\s|$)|[。！？]++{_CLOSING}*+|\n[^\S\n]*+\n\s*+")
_ITEM_NUMBER = re.compile(r"\s*[0-9]{1,3}\.")


def split_spans(
    text: str, by: Literal["sentences", "lines"] | None = None, *, regex: str | re.Pattern[str] | None = None
) -> list[tuple[int, int]]:
    """Return the character ranges (start, end) of a text's parts, in order, for use as spans.

    Every character that is not white space is in exactly one part (with `regex`: or in a separator). White space at the
    ends of a part is left out, and parts of only white space are dropped, so `text[start:end]` is never empty.

    Args:
        text: what the policy wrote.
        by: `lines`: the text between line breaks. `sentences`: up to a run of `.` `!` `?` `…` before white space or the
            end, up to a run of `。` `！` `？`, each with the closing quotes and brackets after it, or up to an empty
            line. `3.14` and the `1.` of a numbered item do not end a sentence; abbreviations (`Dr. No`) do.
        regex: instead of `by`, the separator between parts, as in `re.split`; a zero-width match, such as
            `(?=Step [0-9])`, separates without removing text.
    """
    if (by is None) == (regex is None) or by not in (None, "sentences", "lines"):
        raise RewardError("unknown parts", where="args.by", got=by, expected="sentences or lines, or a regex")
    if regex is not None:
        try:
            cuts = [match.span() for match in re.finditer(regex, text)]
        except re.error as error:
            what, got = "invalid regular expression", f"{regex!r} ({error})"
            raise RewardError(what, where="args.regex", got=got, expected="Python's re") from error
    elif by == "lines":
        cuts = [match.span() for match in _BETWEEN_LINES.finditer(text)]
    else:
        cuts, begin = [], 0
        for match in _SENTENCE_END.finditer(text):
            if not _ITEM_NUMBER.fullmatch(text, begin, match.end()):
                begin = match.end()
                cuts.append((begin, begin))
    parts: list[tuple[int, int]] = []
    begin = 0
    for end, following in [*cuts, (len(text), len(text))]:
        part = text[begin:end]
        if part.strip():
            parts.append((begin + len(part) - len(part.lstrip()), begin + len(part.rstrip())))
        begin = following
    return parts
