"""Valid results of a reward function, dense ones as one value a token, and errors that name reward and row."""

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy
import numpy as np
import pytest

from rlhf_cli.errors import RewardError
from rlhf_cli.rewards.stack.returned_scores import Spread, TokenValues, as_scores, as_token_values, place_spans, shifted
from rlhf_cli.rewards.stack.token_offsets import as_turn_values, token_offsets


class Tensor:
    """What torch.Tensor has of importance here."""

    def __init__(self, values: Any) -> None:
        self.values = values

    def tolist(self) -> Any:
        return self.values


@pytest.mark.parametrize(
    ("returned", "expected"),
    [
        ([1.0, 0.5], [1.0, 0.5]),
        ((1, 0), [1.0, 0.0]),
        ([1, 2.5], [1.0, 2.5]),
        ([True, False], [1.0, 0.0]),
        ([None, 1.0], [None, 1.0]),
        ([None, None], [None, None]),
        ([-0.5, 1e38], [-0.5, 1e38]),
        ([3.4028234663852886e38, -0.5], [3.4028234663852886e38, -0.5]),  # float32's largest
        ([None, -3.4028234663852886e38], [None, -3.4028234663852886e38]),
        (Tensor([0.25, 4.0]), [0.25, 4.0]),
        (numpy.array([0.25, 4.0], dtype="float32"), [0.25, 4.0]),
        (numpy.array([True, False]), [1.0, 0.0]),
        ([numpy.float32(0.25), numpy.int64(4)], [0.25, 4.0]),
        ([numpy.bool_(True), None], [1.0, None]),
    ],
)
@pytest.mark.fault(32)
def test_accepted(returned: Any, expected: list[float | None]) -> None:
    scores = as_scores("mine", returned, 2)
    assert scores == expected
    assert [type(score) for score in scores] == [type(score) for score in expected]


def refusal(returned: Any) -> RewardError:
    with pytest.raises(RewardError) as caught:
        as_scores("mine", returned, 2)
    assert caught.value.where == "rewards.mine"
    return caught.value


@pytest.mark.parametrize("returned", [[], [1.0], [1.0, 2.0, 3.0], Tensor([1.0]), (None,)])
@pytest.mark.fault(32)
def test_the_wrong_length(returned: Any) -> None:
    assert refusal(returned).where == "rewards.mine"


@pytest.mark.parametrize(
    ("returned", "kind"),
    [
        (1.0, "float"),
        (True, "bool"),
        (None, "NoneType"),
        ("ab", "str"),
        ({0: 1.0, 1: 2.0}, "dict"),
        ({1.0, 2.0}, "set"),
        (Tensor(1.0), "float"),
        (numpy.float32(1.0), "float"),
        ((value for value in (1.0, 2.0)), "generator"),
        (object(), "object"),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.fault(32)
def test_no_list(returned: Any, kind: str) -> None:
    error = refusal(returned)
    assert str(error.got).startswith(f"{kind}: ")


@pytest.mark.parametrize(
    ("value", "got"),
    [
        ("0.5", "str: '0.5'"),
        ({"score": 1.0}, "dict: {'score': 1.0}"),
        ([0.5], "list: [0.5]"),
        (1j, "complex: 1j"),
        (math.inf, "inf"),
        (-math.inf, "-inf"),
        (numpy.float32("inf"), "inf"),
    ],
)
@pytest.mark.fault(32, 33)
def test_no_number(value: Any, got: str) -> None:
    error = refusal([1.0, value])
    assert (error.where, error.row) == ("rewards.mine", 1)
    assert error.got == got


def test_a_matrix_is_refused() -> None:
    assert refusal(numpy.zeros((2, 3))).got == "list: [0.0, 0.0, 0.0]"


@pytest.mark.parametrize(
    "rows",
    [[[1.0], [0.5]], numpy.array([[1.0], [0.5]]), [numpy.ones(1), numpy.array([0.5])], [(1.0,), (0.5,)]],
    ids=["lists", "array", "arrays", "tuples"],
)
def test_one_number_in_a_list_for_each_row_is_a_plain_score(rows: object) -> None:
    def read_dense(row: int, value: Sequence[object]) -> TokenValues:
        return as_token_values(value, 3, list, "last")

    assert as_scores("mine", rows, 2, read_dense) == [1.0, 0.5]


@pytest.mark.parametrize(
    ("row", "is_fine"),
    [
        *(([3.4e38, -3.4e38], True), ([1e39, -1e39], False), ([10**400, None], False), ([3e38, 3e38], False)),
        *(([(0, 1, 3.4e38), (1, 2, -3.4e38)], True), ([(0, 1, 1e39), (1, 2, -1e39)], False)),
        *(([(0, 1, 10**400)], False), ([(0, 1, 3e38), (0, 1, 3e38), (1, 2, -6e38)], False)),
        ([(0, 1, 3e38), (0, 1, 3e38), (1, 2, -3e38)], False),
    ],
)
def test_parts_and_their_sums_fit_into_float32(row: list[Any], is_fine: bool) -> None:
    """In the last row only the sum of two spans on one token is too large."""
    with contextlib.nullcontext() if is_fine else pytest.raises(RewardError):
        as_scores("mine", [row], 1, lambda _, value: as_token_values(value, 2, lambda: [(0, 1), (1, 2)], "last"))
    if not isinstance(row[0], tuple):
        with contextlib.nullcontext() if is_fine else pytest.raises(RewardError):
            as_scores("mine", [row], 1, lambda _, value: as_turn_values(value, 2), is_per_turn=True)


def test_a_list_of_one_number_is_dense_for_a_completion_of_one_token() -> None:
    def read_dense(row: int, value: Sequence[object]) -> TokenValues:
        return as_token_values(value, row + 1, list, "last")

    assert as_scores("mine", [[1.0], [0.5], [None]], 3, read_dense) == [[1.0], 0.5, None]
    with pytest.raises(RewardError):
        as_scores("mine", [[1.0], [math.nan]], 2, read_dense)
    with pytest.raises(RewardError):
        as_scores("mine", [[1.0], [0.5, 0.5], [1.0, 1.0]], 3, read_dense)


# `a€b` in bytes and EOS; then two tokens that share a character.
BYTES = [(0, 1), (1, 2), (1, 2), (1, 2), (2, 3), (3, 3)]
SHARED = [(0, 2), (1, 3), (3, 4)]


def decode_bytes(vocabulary: list[bytes], ids: Sequence[int]) -> str:
    return b"".join(vocabulary[token] for token in ids).decode("utf-8", "replace")


def never() -> list[tuple[int, int]]:
    raise AssertionError("offsets are for spans")


def test_last_and_even() -> None:
    spans = [(0, 2, 6.0)]
    assert place_spans(spans, BYTES, spread="last") == [None, None, None, 6.0, None, None]
    assert place_spans(spans, BYTES, spread="even") == [1.5, 1.5, 1.5, 1.5, None, None]


def test_a_merged_token_across_the_edge_belongs_to_both_sides() -> None:
    assert place_spans([(0, 1, 2.0)], SHARED, spread="last") == [2.0, None, None]
    assert place_spans([(0, 2, 2.0)], SHARED, spread="even") == [1.0, 1.0, None]
    assert place_spans([(0, 3, 1.0), (3, 4, 4.0)], SHARED, spread="last") == [None, 1.0, 4.0]
    merged = [(0, 3), (3, 7), (7, 8)]
    assert place_spans([(0, 5, 1.0), (5, 8, -2.0)], merged, spread="even") == [0.5, 0.5 - 1.0, -1.0]


@pytest.mark.parametrize("spread", ["last", "even"])
@pytest.mark.parametrize("seed", range(5))
def test_the_mass_is_kept_however_the_text_is_cut(seed: int, spread: Spread) -> None:
    """Random texts in random tokens of bytes: the mass of a span lies on tokens that overlap it."""
    rng = random.Random(seed)
    for _ in range(60):
        text = "".join(rng.choice("ab €答😀\u0301") for _ in range(rng.randint(1, 30)))
        data = text.encode()
        cuts = sorted(rng.sample(range(1, len(data)), min(len(data) - 1, rng.randint(0, 20))))
        tokens = [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]
        offsets = token_offsets(range(len(tokens)), partial(decode_bytes, tokens))
        start = rng.randrange(len(text))
        end = rng.randint(start + 1, len(text))
        values = place_spans([(start, end, 3.0)], offsets, spread=spread)
        assert math.isclose(sum(value or 0.0 for value in values), 3.0)
        first, last = len(text[:start].encode()), len(text[:end].encode())  # the span in bytes: another way to find it
        edges = [0, *cuts, len(data)]
        holding = [i for i in range(len(tokens)) if edges[i] < last and edges[i + 1] > first]
        assert [i for i, value in enumerate(values) if value] == (holding[-1:] if spread == "last" else holding)


@pytest.mark.parametrize(
    ("span", "message"),
    [
        ((0, 4, 1.0), "span 1 (0, 4, 1.0) is not inside the completion's 3 characters"),
        ((-1, 2, 1.0), "not inside"),
        ((2, 1, 1.0), "span 1 (2, 1, 1.0) ends before it starts"),
        ((1, 1, 1.0), "contains no token"),
        ((3, 3, 1.0), "contains no token"),
        ((0, 1, math.nan), "has the value nan"),
        ((0, 1, math.inf), "has the value inf"),
        ((0.0, 1.0, 1.0), "not (start, end, value)"),
        ((0, 1), "not (start, end, value)"),
        ((0, 1, "x"), "not (start, end, value)"),
        ((0, 1, None), "not (start, end, value)"),
    ],
)
def test_spans_refused(span: Any, message: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        place_spans([(0, 1, 1.0), span], BYTES, spread="last")
    assert message in str(caught.value)
    assert repr(span) in str(caught.value)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ([1, None, 0.0], [1.0, None, 0.0]),
        ((1, 2, 3), [1.0, 2.0, 3.0]),
        ([True, False, np.float32(0.5)], [1.0, 0.0, 0.5]),
        ([None, None, None], [None, None, None]),
        ([], [None, None, None]),
        ((), [None, None, None]),
    ],
)
def test_one_value_a_token(row: Any, expected: list[float | None]) -> None:
    found = as_token_values(row, 3, never, "last")
    assert found == expected
    assert all(value is None or type(value) is float for value in found)


def test_spans_in_a_row() -> None:
    for row in ([(0, 2, 6)], [[0, 2, 6]], ((0, 2, np.int64(6)),)):
        assert as_token_values(row, 6, lambda: BYTES, "last") == [None, None, None, 6.0, None, None]
    assert as_token_values([(0, 2, 6.0)], 6, lambda: BYTES, "even") == [1.5] * 4 + [None, None]


@pytest.mark.parametrize(
    ("row", "parts"),
    [
        ([1.0, 2.0], ["2 values", "6 tokens"]),
        ([1.0] * 7, ["7 values", "6 tokens"]),
        ((0, 2, 1.0), ["3 values", "6 tokens", "[(0, 2, 1.0)]"]),
        ([1.0, math.nan], ["token 1", "nan"]),
        ([-math.inf], ["token 0", "-inf"]),
        ([1.0, "x"], ["token 1", "'x'"]),
        ([1.0, (0, 1, 1.0)], ["token 1", "(0, 1, 1.0)"]),
        ([(0, 1, 1.0), 1.0], ["token 0", "(0, 1, 1.0)"]),
        ([(0, 1, 1.0), (0, 9, 1.0)], ["span 1", "3 characters"]),
    ],
)
def test_rows_refused(row: Any, parts: list[str]) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        as_token_values(row, 6, lambda: BYTES, "last")
    assert all(part in str(caught.value) for part in parts), str(caught.value)


@pytest.mark.parametrize(
    ("values", "total", "expected"),
    [
        ([1.0, None, 3.0], 2.0, [0.0, None, 2.0]),
        ([1.0, None, 3.0], 4.0, [1.0, None, 3.0]),
        ([1.0, None, 3.0], -4.0, [-3.0, None, -1.0]),
        ([2.0, -1.0, None], 3.0, [3.0, 0.0, None]),
        ([1.0, -1.0, None], 0.0, [1.0, -1.0, None]),
        ([1.0, -1.0, None], 0.5, [1.25, -0.75, None]),
        ([1.0, -0.99], 0.01 - 0.5, [0.75, -1.24]),  # an offset of 0.5: multiplied instead, it was [-49, 48.5]
        ([0.0, 0.0, None], 0.5, [0.25, 0.25, None]),
        ([None, 2.0, None], -1.0, [None, -1.0, None]),
        ([None, None], 0.5, [None, 0.5]),
        ([None, None], 0.0, [None, None]),
        ([], 0.0, []),
    ],
)
def test_shifted(values: list[float | None], total: float, expected: list[float | None]) -> None:
    before = list(values)
    assert shifted(values, total) == pytest.approx(expected)
    assert values == before
    assert type(shifted(tuple(values), total)) is list
