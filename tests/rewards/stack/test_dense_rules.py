"""A dense reward under offset, clip, normalise, weight and gate: every token by loops in float64."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from rlhf_cli.numerics.score_scaling import RunningDeviation
from rlhf_cli.rewards.stack.component import Component, ScoreGate
from rlhf_cli.rewards.stack.reward_matrix import Settled, SettleRules, settle, token_rewards
from rlhf_cli.rewards.stack.reward_stack import RewardStack
from tests.support.tolerances import ARITHMETIC, assert_close

Tokens = list[float | None]

DENSE: list[Tokens] = [[1.0, -0.99], [0.5, None, 3.0], [None, -4.0, 1.0, 0.0], [2.0]]
"""Sums 0.01, 3.5, -3 and 2."""
PLAIN = [7.0, 5.0, 3.0, 1.0]
PASSES = [1.0, 0.0, 1.0, 1.0]
WIDTH = 5  # of the batch, with padding
LENGTHS = [2, 3, 4, 1]


class Case:
    """A dense reward and a plain one on four rows in groups of two, settled and laid out on their tokens."""

    def __init__(self, *, weights: tuple[float, float] = (1.0, 1.0), **rules: Any) -> None:
        self.running: dict[str, RunningDeviation] = {}
        self.stack = RewardStack(
            [
                Component("passes", lambda **_: list(PASSES), weight=0.0),
                Component("dense", lambda row, **_: [DENSE[index] for index in row], **rules),
                Component("plain", lambda **_: list(PLAIN)),
            ]
        )
        self.weights = weights

    def laid_out(self) -> tuple[Settled, Tensor, Tensor]:
        """Return the settled batch, and values (K, rows, tokens) with where something is rewarded (rows, tokens)."""
        self.stack.evaluate(
            prompts=["p"] * 4,
            completions=["c"] * 4,
            completion_ids=[list(range(length)) for length in LENGTHS],
            row=[0, 1, 2, 3],
        )
        outcomes = [self.stack.outcomes[name] for name in self.stack.names]
        settled, self.running = settle(
            _matrix([outcome.raw for outcome in outcomes]),
            _matrix([outcome.fixed for outcome in outcomes]),
            torch.tensor([0.0, *self.weights], dtype=torch.float64),
            SettleRules(self.stack.components, num_generations=2),
            self.running,
        )
        is_there = torch.arange(WIDTH) < torch.tensor(LENGTHS).unsqueeze(1)
        values, is_rewarded = token_rewards(self.stack.token_values, settled, is_there, slice(0, 4))
        return settled, values, is_rewarded


def _matrix(columns: list[list[float | None]]) -> Tensor:
    values = [[math.nan if value is None else value for value in column] for column in columns]
    return torch.tensor(values, dtype=torch.float64).T


@pytest.fixture
def case() -> Iterator[Any]:
    made: list[Case] = []

    def make(**rules: Any) -> Case:
        made.append(Case(**rules))
        return made[-1]

    yield make
    for one in made:
        one.stack.close()


def by_hand(divisors: list[float], offset: float, clip: tuple[float, float], weight: float) -> list[Tokens]:
    """r'_t = weight / divisor * (r_t + (clip(S - offset) - S) / n) at the n tokens the reward names."""
    rows = []
    for row, divisor in zip(DENSE, divisors, strict=True):
        there = [value for value in row if value is not None]
        summed = math.fsum(there)
        moved = (min(max(summed - offset, clip[0]), clip[1]) - summed) / len(there)
        rows.append([None if value is None else weight / divisor * (value + moved) for value in row])
    return rows


FREE = (-math.inf, math.inf)
SUMS = [0.01, 3.5, -3.0, 2.0]


@pytest.mark.parametrize(
    ("normalize", "spans"), [("none", []), ("batch", [(0, 4)]), ("group", [(0, 2), (2, 4)]), ("running", [(0, 4)])]
)
@pytest.mark.parametrize("clip", [None, (-1.5, 1.0), (0.5, 2.0)])
@pytest.mark.parametrize("offset", [0.0, 0.5])
class TestEveryRule:
    def test_token_by_token(
        self, case: Any, offset: float, clip: tuple[float, float] | None, normalize: str, spans: list[tuple[int, int]]
    ) -> None:
        """Normalising divides by the deviation of what offset and clip made of the rows' sums, of four or of two."""
        low, high = clip or FREE
        moved = [min(max(one - offset, low), high) for one in SUMS]
        divisors = [1.0] * 4
        for start, end in spans:
            divisors[start:end] = [statistics.stdev(moved[start:end])] * (end - start)
        expected = by_hand(divisors, offset, (low, high), weight=-0.5)
        rules = {"offset": offset, "clip": clip, "normalize": normalize}
        settled, values, is_rewarded = case(weights=(-0.5, 2.0), **rules).laid_out()
        for row, tokens in enumerate(expected):
            padded = [value or 0.0 for value in tokens] + [0.0] * (WIDTH - len(tokens))
            assert values[1, row].tolist() == pytest.approx(padded, rel=1e-6, abs=1e-7)  # laid out in float32
            there = [value is not None for value in tokens] + [False] * (WIDTH - len(tokens))
            there[LENGTHS[row] - 1] = True  # the plain reward
            assert is_rewarded[row].tolist() == there
            plain = [0.0] * WIDTH
            plain[LENGTHS[row] - 1] = 2.0 * PLAIN[row]
            assert values[2, row].tolist() == plain
        # A row's tokens are its total, which is what is logged and what an evaluation has.
        assert_close(values.sum(dim=(0, 2)), settled.totals)


def test_without_rules_token_values_are_unchanged() -> None:
    """Ten times 0.1, added one by one, is 1 - 1.1e-16: the rest is not added to a token."""
    stack = RewardStack([Component("dense", lambda **_: [[0.1] * 10])])
    stack.evaluate(prompts=["p"], completions=["c"], completion_ids=[[0] * 10])
    assert stack.token_values("dense", 0, 1.0) == [0.1] * 10


def test_a_closed_gates_number_is_not_offset_and_lies_on_the_last_token(case: Any) -> None:
    """In the row that is open, a total rescaled onto [1, -0.99] would be [-49, 48.5]: that was wrong once."""
    gated = case(offset=0.5, gates=(ScoreGate("passes", low=1.0, otherwise=-2.0),))
    _, values, _ = gated.laid_out()
    assert values[1, 1].tolist() == [0.0, 0.0, -2.0, 0.0, 0.0]
    assert values[1, 0, :2].tolist() == pytest.approx([0.75, -1.24])


EACH = """
def each(completion_ids, **kwargs):
    return [[None if token % 3 == 0 else token % 7 - 2.5 for token in ids] for ids in completion_ids]
"""


def test_grpos_advantages_by_hand(group, workplace) -> None:
    """Through the trainer: rules, then process supervision (DeepSeekMath, 4.1.3): less the mean of the group's rewarded
    positions, summed from behind.
    """
    rules = "offset: 0.5, clip: [-2.0, 3.0], normalize: batch, weight: 0.7"
    (workplace / "each.py").write_text(EACH)
    run = group(
        *("trainer.dense=true", "trainer.args.scale_rewards=none"),
        rewards=(f"++rewards.each={{fn: './each.py:each', {rules}}}",),
    )
    (output,) = run.outputs
    rows = zip(output["completion_ids"].tolist(), output["completion_mask"].sum(dim=1).tolist(), strict=True)
    given = [[None if token % 3 == 0 else token % 7 - 2.5 for token in ids[:length]] for ids, length in rows]
    sums = [math.fsum(value for value in row if value is not None) for row in given]
    moved = [min(max(one - 0.5, -2.0), 3.0) for one in sums]
    assert moved != [one - 0.5 for one in sums]  # the clip does something
    divisor, ruled = statistics.stdev(moved), list[Tokens]()
    for row, before, after in zip(given, sums, moved, strict=True):
        count = sum(value is not None for value in row)
        ruled.append([None if value is None else 0.7 / divisor * (value + (after - before) / count) for value in row])
    mean = statistics.fmean(value for row in ruled for value in row if value is not None)
    for row, found in zip(ruled, output["advantages"].tolist(), strict=True):
        from_behind = [
            math.fsum(value - mean for value in row[place:] if value is not None) for place in range(len(row))
        ]
        assert found == pytest.approx(from_behind + [0.0] * (len(found) - len(row)), **ARITHMETIC)
