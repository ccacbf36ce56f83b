"""Split a partial command line as a shell would, and format completions for the shell."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

_SPECIAL = re.compile(r"([\s\\'\"`$&;|<>(){}\[\]*?!#~])")
_QUOTES = "'\""


@dataclass(frozen=True)
class TypedLine:
    """A line up to the cursor, split into words; the last word may be incomplete.

    `words` have neither quotes nor backslashes; the first is the program. `raw` is the last word as typed.
    """

    words: tuple[str, ...]
    raw: str

    @property
    def quote(self) -> str:
        """Return the open quote at the start of the last word, or ''."""
        first = self.raw[:1]
        return first if first and first in _QUOTES and self.raw.count(first) == 1 else ""


def typed_line(line: str) -> TypedLine:
    """Return the words of a line that ends at the cursor; after a blank, a new word starts."""
    words: list[str] = []
    raw, word = "", ""
    quote = ""
    is_begun = escaped = False
    for sign in line:
        if escaped:
            raw, word, escaped = raw + sign, word + sign, False
        elif sign == "\\" and quote != "'":
            raw, is_begun, escaped = raw + sign, True, True
        elif quote:
            raw += sign
            if sign == quote:
                quote = ""
            else:
                word += sign
        elif sign in _QUOTES:
            raw, quote, is_begun = raw + sign, sign, True
        elif sign.isspace():
            if is_begun:
                words.append(word)
            raw, word, is_begun = "", "", False
        else:
            raw, word, is_begun = raw + sign, word + sign, True
    return TypedLine((*words, word), raw)


def for_bash(candidates: Iterable[str], typed: TypedLine, breaks: str) -> list[str]:
    """Return the text that bash should insert: each candidate's part after the last word break.

    `breaks` is COMP_WORDBREAKS. Inside quotes there are no breaks and no escapes; bash keeps the quote itself.
    """
    if typed.quote:
        return list(candidates)
    signs = set(breaks) - {" ", "\t", "\n", "'", '"', "\\"}
    last = max((place for place, sign in enumerate(typed.raw) if sign in signs), default=-1)
    prefix = typed.raw[: last + 1]
    return [escaped.removeprefix(prefix) for escaped in map(_escaped, candidates)]


def _escaped(text: str) -> str:
    return text if text.startswith("~") and not _SPECIAL.search(text[1:]) else _SPECIAL.sub(r"\\\1", text)
