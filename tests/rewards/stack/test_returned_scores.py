"""Valid results of a reward function, dense ones as one value a token, and errors that name reward and row."""

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy
import pytest
import torch

from rlhf_cli.errors import RewardError
from rlhf_cli.rewards.stack.returned_scores import Spread, TokenValues, as_scores, as_token_values, place_spans, shifted
from rlhf_cli.rewards.stack.token_offsets import as_turn_values, token_offsets

LARGEST = 3.4028234663852886e38  # of float32


@pytest.mark.parametrize(
    ("returned", "expected"),
    [
        ([1.0, 0.5], [1.0, 0.5]),
        ((1, False), [1.0, 0.0]),
        ([None, 1.0], [None, 1.0]),
        ([LARGEST, -LARGEST], [LARGEST, -LARGEST]),
        *((of([0.25, 4.0]), [0.25, 4.0]) for of in (numpy.array, torch.tensor)),
        (numpy.array([True, False]), [1.0, 0.0]),
        ([numpy.float32(0.25), numpy.int64(4)], [0.25, 4.0]),
    ],
)
@pytest.mark.fault(32)
def test_accepted(returned: Any, expected: list[float | None]) -> None:
    scores = as_scores("mine", returned, 2)
    assert scores == expected
    assert [type(score) for score in scores] == [type(score) for score in expected]


@pytest.mark.parametrize(
    ("returned", "row", "got"),
    [
        # No list, or one of another length.
        *((returned, None, str(list(returned))) for returned in ([], [1.0], (1.0, 2.0, 3.0))),
        *((returned, None, "float: 1.0") for returned in (1.0, numpy.array(1.0))),
        ("ab", None, "str: 'ab'"),
        ({0: 1.0, 1: 2.0}, None, "dict: {0: 1.0, 1: 2.0}"),
        ({1.0, 2.0}, None, "set: {1.0, 2.0}"),
        ((value for value in (1.0, 2.0)), None, "generator: <generator"),
        # No number.
        ([1.0, "0.5"], 1, "str: '0.5'"),
        ([1.0, {"score": 1.0}], 1, "dict: {'score': 1.0}"),
        ([[0.5], 1.0], 0, "list: [0.5]"),
        ([1.0, -math.inf], 1, "-inf"),
        ([1.0, numpy.float32("inf")], 1, "inf"),
        ([1.0, math.nan], 1, "nan"),
    ],
)
@pytest.mark.fault(32, 33)
def test_refused(returned: Any, row: int | None, got: str) -> None:
    with pytest.raises(RewardError) as caught:
        as_scores("mine", returned, 2)
    assert (caught.value.where, caught.value.row) == ("rewards.mine", row)
    assert str(caught.value.got).startswith(got)


@pytest.mark.parametrize(
    "rows",
    [numpy.array([[1.0], [0.5]]), [numpy.ones(1), torch.tensor([0.5])], [(1.0,), (0.5,)]],
    ids=["array", "arrays", "tuples"],
)
def test_one_number_in_a_list_for_each_row_is_a_plain_score(rows: object) -> None:
    def read_dense(row: int, value: Sequence[object]) -> TokenValues:
        return as_token_values(value, 3, list, "last")

    assert as_scores("mine", rows, 2, read_dense) == [1.0, 0.5]


@pytest.mark.parametrize(
    ("row", "is_fine"),
    [
        *(([LARGEST, -LARGEST], True), ([1e39, -1e39], False), ([10**400, None], False), ([3e38, 3e38], False)),
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


BYTES = [(0, 1), (1, 2), (1, 2), (1, 2), (2, 3), (3, 3)]  # `a€b` in bytes and EOS


def decode_bytes(vocabulary: list[bytes], ids: Sequence[int]) -> str:
    return b"".join(vocabulary[token] for token in ids).decode("utf-8", "replace")


def never() -> list[tuple[int, int]]:
    raise AssertionError("offsets are for spans")


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
        ((0, 1, math.nan), "has the value nan"),
        ((0.0, 1.0, 1.0), "not (start, end, value)"),
        ((0, 1), "not (start, end, value)"),
        ((0, 1, "x"), "not (start, end, value)"),
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
        ((1, None, 0.0), [1.0, None, 0.0]),
        ([True, False, numpy.float32(0.5)], [1.0, 0.0, 0.5]),
        ([None, None, None], [None, None, None]),
        ((), [None, None, None]),
    ],
)
def test_one_value_a_token(row: Any, expected: list[float | None]) -> None:
    found = as_token_values(row, 3, never, "last")
    assert found == expected
    assert all(value is None or type(value) is float for value in found)


def test_spans_in_a_row() -> None:
    for row in ([[0, 2, 6]], ((0, 2, numpy.int64(6)),)):
        assert as_token_values(row, 6, lambda: BYTES, "last") == [None, None, None, 6.0, None, None]
    assert as_token_values([(0, 2, 6.0)], 6, lambda: BYTES, "even") == [1.5] * 4 + [None, None]


@pytest.mark.parametrize(
    ("row", "parts"),
    [
        ([1.0, 2.0], ["2 values", "6 tokens"]),
        ((0, 2, 1.0), ["3 values", "6 tokens", "[(0, 2, 1.0)]"]),
        ([1.0, math.nan], ["token 1", "nan"]),
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
        ([1.0, None, 3.0], -4.0, [-3.0, None, -1.0]),
        ([1.0, -1.0, None], 0.0, [1.0, -1.0, None]),
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
