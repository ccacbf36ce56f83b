"""A row that was cut and whose score gives way to -1: no other row, and no token, is compared with what it had scored.

In runs on ROWS, of which the second and the fourth are cut, as tests/rewards/stack/test_truncation.py.
"""

from __future__ import annotations

import pytest
import torch

from tests.rewards.stack.given_completions import REPLACE, grpo
from tests.support.tolerances import ARITHMETIC

BOTH = ("++rewards.score={fn: './mine.py:score'}", "++rewards.middle={fn: './mine.py:of_the_middle'}")
"""1, 2, 3, 6 and -, 10, 1, -. A row that is replaced has 0 of either and -1: 1, 0, 3, 0 and -, 0, 1, 0."""


def test_grpo(group) -> None:
    """The first row's fill is the mean of 0, 1 and 0, with which its part of the advantage by `middle` is 0."""
    run = group(*REPLACE, "trainer.args.scale_rewards=none", rewards=BOTH)
    assert run.advantages == pytest.approx(grpo([1 + 1 / 3, -1.0, 4.0, -1.0]), **ARITHMETIC)


def test_rloo(group) -> None:
    """Each column less its mean over the other rows where it applies; middle over the last three alone."""

    def alone(column: list[float], rows: list[int]) -> list[float]:
        others = {row: [column[other] for other in rows if other != row] for row in rows}
        return [column[row] - sum(others[row]) / len(others[row]) if row in rows else 0.0 for row in range(4)]

    run = group("trainer=rloo", "trainer.args.beta=0.0", *REPLACE, rewards=BOTH)
    everyone = [0, 1, 2, 3]
    columns = [
        alone([1.0, 0.0, 3.0, 0.0], everyone),
        alone([0.0, 0.0, 1.0, 0.0], [1, 2, 3]),
        alone([0.0, -1.0, 0.0, -1.0], everyone),
    ]
    assert run.advantages == pytest.approx([sum(row) for row in zip(*columns, strict=True)], **ARITHMETIC)


def test_dense_tokens_of_a_replaced_row_give_way_with_its_score(group) -> None:
    """Every first token earns 4. Cut rows have -1 on their last token alone, so all their tokens have one advantage.

    Rewarded positions: all of the two rows that ended (4, then zeros: 3 and 4 tokens), one each of the two others.
    With the 4 left where it was and -1 - 4 on the last token, the tokens behind the first would pay for it.
    """
    words = ("trainer.dense=true", "trainer.args.scale_rewards=none")
    run = group(*REPLACE, *words, rewards=("++rewards.score={fn: './mine.py:by_token'}",))
    rows = [[4.0, 0.0, 0.0], [-1.0], [4.0, 0.0, 0.0, 0.0], [-1.0]]
    values = [value for row in rows for value in row]
    mean = sum(values) / len(values)
    given = run.outputs[0]["advantages"]
    expected = torch.zeros(4, 4)
    for row, rewarded in enumerate(rows):
        togo = [sum(value - mean for value in rewarded[place:]) for place in range(len(rewarded))]
        expected[row, : max(len(togo), 1)] = torch.tensor(togo)
        if len(togo) == 1:
            expected[row] = togo[0]
    torch.testing.assert_close(given.float(), expected)
