"""Bring what a reward returns to one form: numbers, None, lists of token values, spans.

A row of a dense reward is one of
- a list of floats and Nones, one per completion token: None = this token is not rewarded, 0.0 = it is, with 0;
- a list of spans `(start, end, value)` in characters of the completion's text;
- an empty list: no position is rewarded (its sum is 0).

If one number is needed, it is the sum over the row's tokens. Process rewards are normalised over the rewarded positions
of a group, so None and 0.0 differ.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias

from rlhf_cli.errors import RewardError

if TYPE_CHECKING:
    from rlhf_cli.rewards.dense import Span

Offset: TypeAlias = tuple[int, int]
"""`(start, end)`: the characters of the completion that a token covers in part; start == end if none."""

TokenValues: TypeAlias = list[float | None]
"""One entry per completion token; None if the token is not rewarded."""

Spread: TypeAlias = Literal["last", "even"]
"""Where a span's value goes: to the last token that overlaps it, or in equal parts to all of them."""


def place_spans(spans: Sequence[Span], offsets: Sequence[Offset], *, spread: Spread) -> TokenValues:
    """Return one value per token: r_t = the sum over spans s of value_s * share_s(t), or None for a token without span.

    share_s(t) is 1 at the last token that overlaps s (`last`), or 1/n at each of the n tokens that do (`even`). In both
    cases sum_t r_t = sum_s value_s. A token overlaps a span if they share a character. So a merged token across a
    span's edge belongs to both neighbours, and a token without text (EOS) to no span. Spans may overlap,
    in any order; `offsets` are from `token_offsets`.

    Raise ValueError, naming the span, if it is not `(int, int, number)`, is outside the text, inverted, overlaps no
    token (for example an empty one), or if its value, or the sum of all, is NaN or infinite in float32.
    """
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
            raise ValueError(f"span {number} {span!r} contains no token")
        tokens = tokens[-1:] if spread == "last" else tokens
        for token in tokens:
            values[token] = (values[token] or 0.0) + value / len(tokens)
    return _in_range(values)


def as_token_values(
    row: Sequence[object], num_tokens: int, offsets: Callable[[], Sequence[Offset]], spread: Spread
) -> TokenValues:
    """Return what a reward gave one completion as one value per token.

    A bare triple of numbers means three tokens; a span must be in a list. `num_tokens` counts EOS and no padding,
    `offsets` is called only for spans. Raise ValueError for a wrong length or other items, and as `place_spans` does.
    """
    if not row:
        return [None] * num_tokens
    if (spans := named_spans(row)) is not None:
        return place_spans(spans, offsets(), spread=spread)
    values = as_numbers(row, "token")
    if len(values) != num_tokens:
        more = f"; if it is a span, it goes into a list: [{row!r}]" if isinstance(row, tuple) and len(row) == 3 else ""
        raise ValueError(f"{len(values)} values for a completion of {num_tokens} tokens{more}")
    return values


def named_spans(row: Sequence[object]) -> list[Span] | None:
    """Return the spans of a dense row, None if it has one value per token. Raise as `place_spans` does."""
    if not row or not all(isinstance(item, list | tuple) for item in row):
        return None
    return [_span(item, number) for number, item in enumerate(row)]


def shifted(values: Sequence[float | None], total: float) -> TokenValues:
    """Return the same positions summing to `total`: the change of the row's sum is spread evenly over them.

    r'_t = r_t + (total - S) / n with S = sum_t r_t over the n rewarded positions: of all rows that sum to `total`, the
    nearest in least squares. So a clip to [low, high] is the projection onto the rows whose sum is within these bounds,
    and a small change of the row is a small change of its tokens; total / S as a factor would grow without bound as S
    goes to 0. If no position is rewarded, `total` goes onto the last token. Raise ValueError
    if the total is not finite, or not 0 for a row without tokens.
    """
    if not math.isfinite(total):
        raise ValueError(f"a row cannot sum to {total}")
    rewarded = [value for value in values if value is not None]
    difference = total - math.fsum(rewarded)
    if rewarded:
        return [None if value is None else value + difference / len(rewarded) for value in values]
    if difference and not values:
        raise ValueError(f"there is no token for {total}")
    return [*values[:-1], difference] if difference else list(values)


def _span(span: object, number: int) -> Span:
    if isinstance(span, list | tuple) and len(span) == 3:
        try:
            start, end, value = operator.index(span[0]), operator.index(span[1]), _number(span[2])
        except TypeError:
            pass
        else:
            if math.isfinite(value):
                return start, end, value
            raise ValueError(f"span {number} {span!r} has the value {span[2]!s:.80}, which is not finite in float32")
    raise ValueError(f"span {number} {span!r} is not (start, end, value) with whole start and end")


def as_numbers(row: Sequence[object], unit: str) -> TokenValues:
    """Return finite numbers and Nones, one per `unit`. Raise ValueError, naming the place, for anything else."""
    values = []
    for place, item in enumerate(row):
        try:
            value = None if item is None else _number(item)
        except TypeError:
            value = math.nan
        if value is not None and not math.isfinite(value):
            raise ValueError(f"{unit} {place} has {item!r:.80}, which is neither a finite number (float32) nor None")
        values.append(value)
    return _in_range(values)


def _in_range(values: TokenValues) -> TokenValues:
    numbers = [value for value in values if value is not None]
    if not all(abs(number) <= LARGEST for number in (*numbers, sum(numbers))):
        raise ValueError(f"the values add up to more than float32 holds: {values!r:.80}")
    return values


def _number(item: object) -> float:
    if hasattr(item, "item"):
        item = item.item()
    if not isinstance(item, int | float):
        raise TypeError(type(item).__name__)
    return float(item) if abs(item) <= LARGEST else math.nan


LARGEST = 3.4028234663852886e38
"""The largest float32: anything above would be infinite in TRL's reward matrix."""

Score = float | None
"""One row's reward; None if the reward does not apply to the row."""

ReadDense = Callable[[int, Sequence[object]], TokenValues]
"""(row, its list) -> one value per token. Raise ValueError for an invalid list."""


def as_scores(
    name: str, returned: object, num_rows: int, read_dense: ReadDense | None = None, *, is_per_turn: bool = False
) -> Sequence[Score | TokenValues | BaseException]:
    """Return `returned` as a list of `num_rows` floats or Nones; a dense row becomes a list of token values.

    Accept a list, a tuple, a numpy array or a tensor. An exception marks a failed row. A row of one number for several
    tokens, as of an array of the shape (rows, 1), is a plain score, except for a reward per turn. Raise RewardError,
    naming the reward and the row, for anything else: a wrong length, a text, NaN, infinity.
    """
    if hasattr(returned, "tolist"):
        returned = returned.tolist()
    expected = f"a list of {num_rows} numbers, one per completion; None if the reward does not apply"
    if isinstance(returned, str | bytes | dict) or not isinstance(returned, Sequence):
        got = f"{type(returned).__name__}: {returned!r:.80}"
        raise RewardError(f"reward {name!r} did not return a list", where=f"rewards.{name}", got=got, expected=expected)
    if len(returned) != num_rows:
        what = f"reward {name!r} returned {len(returned)} values for {num_rows} completions"
        raise RewardError(what, where=f"rewards.{name}", got=f"{list(returned)!r:.80}", expected=expected)
    return [_as_score(name, row, value, read_dense, is_per_turn) for row, value in enumerate(returned)]


_A_TURN = "a list of one number per turn: one for each message of the assistant"


def _as_score(
    name: str, row: int, value: object, read_dense: ReadDense | None, is_per_turn: bool = False
) -> Score | TokenValues | BaseException:
    if value is None or isinstance(value, BaseException):
        return value
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list | tuple) and read_dense is not None:
        try:
            return read_dense(row, value)
        except ValueError as error:
            if is_per_turn:
                raise _refused(name, row, "one number per turn", str(error), _A_TURN) from error
            if len(value) != 1 or not isinstance(value[0], int | float | None):
                wanted = "a list of numbers, one per completion token, or of spans (start, end, value) in characters"
                raise _refused(name, row, "values per token", str(error), wanted) from error
            return _as_score(name, row, value[0], None)
    if is_per_turn:
        raise _refused(name, row, "one number per turn", f"{type(value).__name__}: {value!r:.80}", _A_TURN)
    is_number = isinstance(value, int | float)
    if isinstance(value, int | float) and abs(value) <= LARGEST:  # NaN compares as false
        return float(value)
    problem = f"{value!r:.80}" if is_number else f"{type(value).__name__}: {value!r:.80}"
    raise _refused(name, row, "a number", problem, "a finite number, or None if the reward does not apply")


def _refused(name: str, row: int, what: str, got: str, expected: str) -> RewardError:
    what = f"reward {name!r} did not return {what} for row {row}"
    error = RewardError(what, where=f"rewards.{name}", got=got, expected=expected)
    error.row = row
    return error
