"""Weighted rewards laid out on the tokens of rows, by hand: three columns wide, the second row of two tokens."""

from __future__ import annotations

import pytest
import torch

from rlhf_cli.rewards.stack.reward_matrix import Settled, last_token_rewards, token_rewards
from tests.support.settled_columns import NAN, Case, Rule, column

IN_COMPLETION = torch.tensor([[1, 1, 1], [1, 1, 0], [0, 0, 0], [1, 0, 0]])


class DenseRows:
    """A stack whose reward `a` gave the first of its rows values on its first and last token."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int, float]] = []

    def token_values(self, name: str, row: int, divisor: float) -> list[float | None] | None:
        self.asked.append((name, row, divisor))
        return [0.5, None, 1.5] if (name, row) == ("a", 0) else None


def settled(*columns: torch.Tensor, **rules: str) -> Settled:
    """Return two components and an environment's own reward, of weights 2, -1 and 3."""
    return Case(list(columns), [Rule("a", **rules), Rule("b")], [2.0, -1.0, 3.0]).settle()  # type: ignore[arg-type]


def test_dense_ones_lie_on_their_tokens_and_plain_ones_on_the_last() -> None:
    """Nothing is rewarded in the row without tokens, and nothing by b in the last, to which it does not apply."""
    rows = settled(column(2, 4, 6, 8), column(1, 1, 1, NAN), column(0, 0.5, 0, 0))
    values, is_rewarded = token_rewards(DenseRows().token_values, rows, IN_COMPLETION, slice(0, 4))
    assert values.tolist() == [
        [[1.0, 0.0, 3.0], [0.0, 8.0, 0.0], [0.0] * 3, [16.0, 0.0, 0.0]],
        [[0.0, 0.0, -1.0], [0.0, -1.0, 0.0], [0.0] * 3, [0.0] * 3],
        [[0.0] * 3, [0.0, 1.5, 0.0], [0.0] * 3, [0.0] * 3],
    ]
    # The environment's 0 on the last token is a reward, too.
    assert is_rewarded.tolist() == [[True, False, True], [False, True, False], [False] * 3, [True, False, False]]


def test_a_dense_row_is_asked_for_with_what_divides_it() -> None:
    """2, 4, 6, 8 around 5 deviate by sqrt(20 / 3)."""
    rows, stack = settled(column(2, 4, 6, 8), column(1, 1, 1, 1), column(0, 0, 0, 0), normalize="batch"), DenseRows()
    token_rewards(stack.token_values, rows, IN_COMPLETION, slice(0, 4))
    asked = {(name, row): divisor for name, row, divisor in stack.asked}
    deviation = (20 / 3) ** 0.5
    of_a = {row: one for (name, row), one in asked.items() if name == "a"}
    assert of_a == {row: pytest.approx(deviation, rel=1e-9) for row in (0, 1, 3)}
    assert {one for (name, _), one in asked.items() if name == "b"} == {1.0}
    assert {name for name, _ in asked} == {"a", "b"}  # of an environment's own nothing is known


def test_this_ranks_rows() -> None:
    rows = settled(column(0, 0, 2, 4), column(0, 0, 1, 1), column(0, 0, 0, 0))
    values, _ = token_rewards(DenseRows().token_values, rows, IN_COMPLETION[:2], slice(2, 4))
    assert values[1].tolist() == [[0.0, 0.0, -1.0], [0.0, -1.0, 0.0]]
    assert values[0].tolist() == [[1.0, 0.0, 3.0], [0.0, 8.0, 0.0]]


def test_all_on_the_last_token() -> None:
    """2 a, - b and 3 times the environment's; the last row has no score at all, the third no token."""
    rows = settled(column(2, 4, 6, NAN), column(1, 1, 1, NAN), column(0, 0.5, 0, NAN))
    values = last_token_rewards(rows, IN_COMPLETION, slice(0, 4))
    assert values.dtype == torch.float32
    assert values.tolist() == [
        [[0.0, 0.0, 4.0], [0.0, 8.0, 0.0], [0.0] * 3, [0.0] * 3],
        [[0.0, 0.0, -1.0], [0.0, -1.0, 0.0], [0.0] * 3, [0.0] * 3],
        [[0.0] * 3, [0.0, 1.5, 0.0], [0.0] * 3, [0.0] * 3],
    ]
    assert last_token_rewards(rows, IN_COMPLETION[:2], slice(1, 3)).tolist()[0] == [[0.0, 0.0, 8.0], [0.0, 12.0, 0.0]]
