"""Helps an author of dense rewards to cut a completion into the parts that are to be rewarded. No torch."""

from __future__ import annotations

import re
from typing import Literal, TypeAlias

from rlhf_cli.errors import RewardError

Span: TypeAlias = tuple[int, int, float]
"""`(start, end, value)`: characters start to end, end excluded, of the completion; `value` is the whole span's mass."""

_CLOSING = r"[\"')\]}”’»」』）】*_]"
_BETWEEN_LINES = re.compile(r"\r\n|[\n\r]")
# Runs are taken whole (lookbehind, `++`): a policy that writes nothing but dots must not cost quadratic time.
_SENTENCE_END = re.compile(rf"(?<![.!?…])[.!?…]++{_CLOSING}*+(?=\s|$)|[。！？]++{_CLOSING}*+|\n[^\S\n]*+\n\s*+")
_ITEM_NUMBER = re.compile(r"\s*[0-9]{1,3}\.")


def place_spans(spans: Sequence[Span], offsets: Sequence[Offset], *, spread: Spread) -> TokenValues:
    """One value a token: r_t = the sum over spans s of value_s * share_s(t).

    share_s(t) is 1 at the last token that overlaps s (`last`), or 1/n at each of the n tokens that do (`even`): either
    way sum_t r_t = sum_s value_s. A token overlaps a span when they have a character in common, so a merged token
    across a span's edge belongs to it, and to its neighbour too; a token without text (EOS) to no span. None where no
    span rewards the token.

    Args:
        spans: in characters of the text that `offsets` are of; may overlap, in any order.
        offsets: the characters of each token, as `offsets.token_offsets` gives them.
        spread: see above.

    Raises ValueError, naming the span, for one that is no `(int, int, number)`, is outside the text, inverted, overlaps
    no token (an empty one, for example), or whose value is infinite or NaN.
    """
    if spread not in ("last", "even"):
        raise ValueError(f"spread is {spread!r}, not last or even")
    length = max((end for _, end in offsets), default=0)
    values: TokenValues = [None] * len(offsets)
    for number, span in enumerate(spans):
        start, end, value = _span(span, number)
        if start > end:
            raise ValueError(f"span {number} {span!r} ends before it starts")
        if start < 0 or end > length:
            raise ValueError(f"span {number} {span!r} is not inside the completion's {length} characters")
        tokens = [token for token, (first, last) in enumerate(offsets) if max(first, start) < min(last, end)]
        if not tokens:
            raise ValueError(f"span {number} {span!r} holds no token")
        if spread == "last":
            tokens = tokens[-1:]
        for token in tokens:
            values[token] = (values[token] or 0.0) + value / len(tokens)
    return values


def as_token_values(
    row: Any, num_tokens: int, offsets: Callable[[], Sequence[Offset]], spread: Spread
) -> TokenValues | None:
    """A returned row as one value a token, or None when it is no dense row (a number, None, a text, a dict).

    Dense is a list, a tuple or a one-dimensional array: of numbers and Nones, one a token, or of triples, the spans.
    `[]` is no rewarded position. A bare triple of numbers is three tokens; a span goes into a list.

    Args:
        row: what the reward function returned for one completion.
        num_tokens: the number of tokens of that completion, EOS included and padding not.
        offsets: called only for spans.
        spread: see `place_spans`.

    Raises ValueError (what is wrong, not where: the caller knows the reward and the row) for another length, with both
    lengths, for infinite or NaN values, for anything in the list that is neither, and as `place_spans` does.
    """
    if hasattr(row, "tolist"):
        row = row.tolist()
    if not isinstance(row, list | tuple):
        return None
    if not row:
        return [None] * num_tokens
    if all(isinstance(item, list | tuple) for item in row):
        places = offsets()
        if len(places) != num_tokens:
            raise ValueError(f"there are {len(places)} offsets for a completion of {num_tokens} tokens")
        return place_spans(row, places, spread=spread)
    values = [_token_value(item, token) for token, item in enumerate(row)]
    if len(values) != num_tokens:
        hint = f"; if it is a span, it goes into a list: [{row!r}]" if isinstance(row, tuple) and len(row) == 3 else ""
        raise ValueError(f"{len(values)} values for a completion of {num_tokens} tokens{hint}")
    return values


def rescale(values: Sequence[float | None], total: float) -> TokenValues:
    """The same positions, summing to `total`.

    r'_t = r_t * total / S with S = sum_t r_t, so that what was done to the row's sum (an offset, a clip) is done to its
    tokens in proportion. Where S is 0, or no more than rounding left of terms that cancel (|S| <= 1e-9 sum_t |r_t|),
    no factor exists: the tokens keep their values and the difference goes onto the last rewarded position, or onto the
    last token where none is rewarded. So a row of +1 and -1 is unchanged by total = 0: whoever multiplies a row (a
    weight, a deviation, a closed gate) must use `multiply`, which needs no sum.

    Raises ValueError for a total that is not finite, or not 0 where there is no token.
    """
    if not math.isfinite(total):
        raise ValueError(f"a row cannot be made to sum to {total}")
    rewarded = [value for value in values if value is not None]
    present = math.fsum(rewarded)
    if abs(present) > _CANCELLED * math.fsum(map(abs, rewarded)):
        return multiply(values, total / present)
    scaled = list(values)
    difference = total - present
    if difference and total:
        if not scaled:
            raise ValueError(f"there is no token to carry {total}")
        last = max((token for token, value in enumerate(scaled) if value is not None), default=len(scaled) - 1)
        scaled[last] = (scaled[last] or 0.0) + difference
    return scaled


def multiply(values: Sequence[float | None], factor: float) -> TokenValues:
    """r'_t = factor * r_t at the same positions: a weight, one over a deviation, 0 for a closed gate."""
    return [None if value is None else value * factor for value in values]


def split_spans(
    text: str, by: Literal["sentences", "lines"] | None = None, *, regex: str | re.Pattern[str] | None = None
) -> list[tuple[int, int]]:
    """The character ranges (start, end) of a text's parts, in order, to be given values and returned as spans.

    Every character that is not white space is in exactly one part (with `regex`: or in a separator). White space at
    a part's ends is left out, and a part of nothing else is no part; so `text[start:end]` is never empty.

    Args:
        text: what the policy wrote.
        by: `lines`: what is between line breaks. `sentences`: up to a run of `.` `!` `?` `…` before white space or the
            end, up to a run of `。` `！` `？`, each with the quotes and brackets that close behind it, or up to an
            empty line. `3.14` and the `1.` that begins a numbered item end nothing; abbreviations (`Dr. No`) do.
        regex: instead of `by`, what separates the parts, as in `re.split`; a match without width, such as
            `(?=Step [0-9])`, separates without taking anything away.
    """
    if (by is None) == (regex is None) or by not in (None, "sentences", "lines"):
        raise RewardError("no such parts", where="args.by", got=by, expected="sentences or lines, or else a regex")
    if regex is not None:
        try:
            cuts = [found.span() for found in re.finditer(regex, text)]
        except re.error as error:
            raise RewardError(
                "this is no regular expression", where="args.regex", got=f"{regex!r} ({error})", expected="Python's re"
            ) from error
    elif by == "lines":
        cuts = [found.span() for found in _BETWEEN_LINES.finditer(text)]
    else:
        cuts = _sentence_ends(text)
    parts: list[tuple[int, int]] = []
    begin = 0
    for end, following in [*cuts, (len(text), len(text))]:
        part = text[begin:end]
        if part.strip():
            parts.append((begin + len(part) - len(part.lstrip()), begin + len(part.rstrip())))
        begin = following
    return parts


def _sentence_ends(text: str) -> list[tuple[int, int]]:
    ends: list[tuple[int, int]] = []
    begin = 0
    for found in _SENTENCE_END.finditer(text):
        if not _ITEM_NUMBER.fullmatch(text, begin, found.end()):
            begin = found.end()
            ends.append((begin, begin))
    return ends
