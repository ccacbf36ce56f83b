"""Valid results of a reward function, and errors that name the reward and the row of an invalid one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy
import pytest

from rlhf_cli.errors import RewardError
from rlhf_cli.rewards.stack.returned_scores import TokenValues, as_scores, as_token_values


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
    def read_dense(row: int, value: Sequence[object]) -> TokenValues | None:
        return as_token_values(value, 3, list, "last")

    assert as_scores("mine", rows, 2, read_dense) == [1.0, 0.5]


def test_a_list_of_one_number_is_dense_for_a_completion_of_one_token() -> None:
    def read_dense(row: int, value: Sequence[object]) -> TokenValues | None:
        return as_token_values(value, row + 1, list, "last")

    assert as_scores("mine", [[1.0], [0.5], [None]], 3, read_dense) == [[1.0], 0.5, None]
    with pytest.raises(RewardError):
        as_scores("mine", [[1.0], [math.nan]], 2, read_dense)
    with pytest.raises(RewardError):
        as_scores("mine", [[1.0], [0.5, 0.5], [1.0, 1.0]], 3, read_dense)
