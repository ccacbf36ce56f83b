"""Map characters to sampled tokens, and name the parts of a completion.

The text is never tokenised again: the result could differ from the tokens that the policy sampled.

A part is a span that the reward returned or, for one value per token, a run of tokens with equal values. The parts'
rewards sum to the row's score, which hides them: -1 and +1 make 0.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from rlhf_cli.rewards.dense import Span
from rlhf_cli.rewards.stack.returned_scores import Offset, TokenValues

Decode = Callable[[Sequence[int]], str]

_UNKNOWN = "\ufffd"  # a decoder writes this for bytes that are no character (yet)
_LONG = 24  # tokens in a window before it is shortened


def token_offsets(
    ids: Sequence[int], decode: Decode, *, pieces: MutableMapping[int, str] | None = None
) -> list[tuple[int, int]]:
    """Return (start, end) of every token: it covers a part of each character of decode(ids)[start:end].

    With P_i = decode(ids[:i]) and c_i the length of the common prefix of P_i and the whole text, token i begins at c_i
    and ends at c_{i+1}; a token that leaves a character unfinished also covers that character. So all tokens of a
    multi-byte character cover it, neighbouring ranges may share one character, all ranges together cover the text, and
    a token that decodes to no text (EOS, with special tokens skipped) has an empty range.

    Decoding each P_i from the start would take quadratic time. As in streaming detokenizers, a window is decoded that
    begins one token before the last finished character, because some decoders strip a leading space. A token whose own
    text (decoded once per id) comes next in the text needs no window. If the windows do not reproduce the text, every
    P_i is decoded after all, which is slow but correct.

    Args:
        ids: the sampled tokens.
        decode: tokens -> text, with the options that produced the text which the reward function saw.
        pieces: id -> own text, filled here. Keep one per `decode` to reuse it for later rows.
    """
    if not ids:
        return []
    text = decode(ids)
    known = _Pieces(ids, decode, {} if pieces is None else pieces)
    return _by_windows(ids, decode, text, known) or _by_prefixes(ids, decode, text, known)


def characters(text: str) -> list[tuple[int, int]]:
    """Return (start, end) of every character; without tokens, each character counts as one."""
    return [(place, place + 1) for place in range(len(text))]


def _by_windows(ids: Sequence[int], decode: Decode, text: str, pieces: _Pieces) -> list[tuple[int, int]]:
    """Return the ranges in linear time; [] if the windows do not reproduce the text."""
    reader = _Reader(text)
    offsets: list[tuple[int, int]] = []
    start = at = 0  # the window: tokens from `start` on; their first character is text[at]
    before: str | None = ""  # the window decoded up to the token; None = open a new one
    for index, token in enumerate(ids):
        own = pieces.of(token)
        if reader.is_between_characters and _UNKNOWN not in own and text.startswith(own, reader.reached):
            offsets.append((reader.reached, reader.reached + len(own)))
            reader.reached += len(own)
            before = None
            continue
        if before is None:
            start, at = _open(ids, index, decode, text, reader.reached)
            before = decode(ids[start:index])
        after = decode(ids[start : index + 1])
        offsets.append(reader.read(at, before, after, own))
        before = after
        if reader.is_between_characters:
            before = None
        elif reader.is_exact and (index + 1 - start) % _LONG == 0:
            start, skipped, before = _shorten(ids, start, index + 1, decode, before)
            at += skipped
    return offsets if reader.is_exact and reader.reached == len(text) else []


def _by_prefixes(ids: Sequence[int], decode: Decode, text: str, pieces: _Pieces) -> list[tuple[int, int]]:
    """Return the ranges by definition, in quadratic time."""
    reader = _Reader(text)
    offsets: list[tuple[int, int]] = []
    before = ""
    for index, token in enumerate(ids):
        after = decode(ids[: index + 1])
        offsets.append(reader.read(0, before, after, pieces.of(token)))
        before = after
    return offsets


class _Reader:
    """Track how much of the text the tokens so far cover."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.reached = 0
        self.is_exact = True  # the tokens so far decode to exactly text[:reached]

    @property
    def is_between_characters(self) -> bool:
        """Return whether the next token certainly starts a character.

        A text that ends in U+FFFD so far may end inside a character, and some decoders strip a space at the start.
        """
        return self.is_exact and self.reached > 0 and self.text[self.reached - 1] != _UNKNOWN

    def read(self, at: int, before: str, after: str, own: str) -> tuple[int, int]:
        """Return the range of the token that extended the window from `before` to `after`.

        The window's first character is text[at].
        """
        start, was_exact = self.reached, self.is_exact
        alike = _num_alike(self.text, at, after)
        self.reached = max(start, at + alike)
        self.is_exact = alike == len(after) and at + alike == self.reached
        if not own and after == before:
            return start, start
        end = self.reached if self.is_exact else min(self.reached + 1, len(self.text))
        # A U+FFFD was read before, and the token's own text is longer than what it added: its first bytes belong to
        # that character.
        begins_inside = own.startswith(_UNKNOWN) and len(own) > len(after) - len(before)
        if was_exact and begins_inside and start > 0 and self.text[start - 1] == _UNKNOWN:
            start -= 1
        return start, max(start, end)


class _Pieces:
    """The text that each token adds after another one, decoded once per id."""

    def __init__(self, ids: Sequence[int], decode: Decode, known: MutableMapping[int, str]) -> None:
        self._decode, self._known = decode, known
        self._ids = ids
        self._context: tuple[list[int], str] | None = None

    def of(self, token: int) -> str:
        """Return the token's own text; U+FFFD if it changes the text before it, and so has none."""
        if token not in self._known:
            context, text = self._before()
            both = self._decode([*context, token])
            self._known[token] = both[len(text) :] if both.startswith(text) else _UNKNOWN
        return self._known[token]

    def _before(self) -> tuple[list[int], str]:
        # Any token with visible text works: after it, no leading space is stripped.
        if self._context is None:
            decoded = (([token], self._decode([token])) for token in dict.fromkeys(self._ids))
            usable = (pair for pair in decoded if pair[1].strip() and _UNKNOWN not in pair[1])
            self._context = next(usable, ([], ""))
        return self._context


def _open(ids: Sequence[int], index: int, decode: Decode, text: str, reached: int) -> tuple[int, int]:
    """Return a token before `index` from which decoding gives the text before `reached`, and its first character."""
    width = 1
    while width < index:
        context = decode(ids[index - width : index])
        if context and text.endswith(context, 0, reached):
            return index - width, reached - len(context)
        width += 1 + width // 8  # not doubled: characters of three bytes each end at multiples of three
    return 0, 0


def _shorten(ids: Sequence[int], start: int, stop: int, decode: Decode, window: str) -> tuple[int, int, str]:
    """Return a later start for a long window that ends in U+FFFD: start, skipped characters, decoded window.

    A cut inside a character would change the decoded text; of five adjacent cuts, at least one is between characters.
    """
    for cut in range(stop - 8, stop - 3):
        head, tail = decode(ids[start:cut]), decode(ids[cut:stop])
        if tail and head + tail == window:
            return cut, len(head), tail
    return start, 0, window


def _num_alike(text: str, at: int, part: str) -> int:
    if text.startswith(part, at):
        return len(part)
    pairs = zip(text[at : at + len(part)], part, strict=False)
    return next((place for place, (one, other) in enumerate(pairs) if one != other), max(0, len(text) - at))


@dataclass(frozen=True)
class Part:
    """A scored stretch of a completion: its characters [start, end), text, reward and tokens."""

    start: int
    end: int
    text: str
    reward: float
    tokens: tuple[int, ...]


def parts_of(text: str, values: TokenValues, offsets: Sequence[Offset], spans: Sequence[Span] | None) -> list[Part]:
    """Return the parts of one row in order.

    text: the completion. values: the reward's values, one per token. offsets: the characters of each token. spans: the
    spans that the reward returned, None if it returned one value per token.
    """
    if spans is None:
        return _runs(text, values, offsets)
    return [
        Part(start, end, text[start:end], value, tuple(_overlapping(offsets, start, end)))
        for start, end, value in sorted(spans)
    ]


def _runs(text: str, values: TokenValues, offsets: Sequence[Offset]) -> list[Part]:
    """Return runs of adjacent tokens with equal values; tokens without a value are in no part."""
    parts = []
    for value, run in groupby(range(len(values)), key=values.__getitem__):
        if value is None:
            continue
        tokens = tuple(run)
        start, end = offsets[tokens[0]][0], max(offsets[token][1] for token in tokens)
        parts.append(Part(start, end, text[start:end], value * len(tokens), tokens))
    return parts


def _overlapping(offsets: Sequence[Offset], start: int, end: int) -> list[int]:
    return [token for token, (first, last) in enumerate(offsets) if max(first, start) < min(last, end)]
