"""A reward with one number per turn: counted when it is called, placed by the mask, paid by GAE to what came before."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from rlhf_cli.errors import RewardError
from rlhf_cli.numerics.ppo import gae
from rlhf_cli.rewards.stack.component import Component, ScoreGate
from rlhf_cli.rewards.stack.reward_matrix import Settled, SettleRules, settle, token_rewards
from rlhf_cli.rewards.stack.reward_stack import RewardStack
from rlhf_cli.rewards.stack.token_offsets import TURN_TEXTS, ScoredPart, runs_of, with_turn_texts
from tests.support.tolerances import assert_close, assert_equal

CALL = {"type": "function", "function": {"name": "calc", "arguments": {"a": 2}}}
CONVERSATION = [
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "name": "calc", "content": "4"},
    {"role": "assistant", "content": "It is 4."},
]
MASKS = [[1, 1, 0, 0, 1, 1, 1, 0], [1, 1, 1, 0, 1, 1, 0, 0]]
"""Two rows of two turns: tokens 0 and 1, then 4 to 6; tokens 0 to 2, then 4 and 5. Tokens 2, 3 and 3 are a tool's."""
TURNS = [[1.0, 5.0], [2.0, -3.0]]


def matrix(columns: list[list[float | None]]) -> Tensor:
    return torch.tensor([[torch.nan if one is None else one for one in column] for column in columns]).double().T


class Case:
    """A reward per turn on two conversations in one group."""

    def __init__(self, rows: Any = TURNS, *, texts: Any = None, completions: Any = None, **rules: Any) -> None:
        rules = {"per": "turn", **rules}
        scored = Component("r", lambda index, **_: [rows[row] for row in index], **rules)
        self.stack = RewardStack([Component("open", lambda **_: [1.0, 0.0], weight=0.0), scored])
        self.batch = {"prompts": ["p"] * len(rows), "completions": completions or [CONVERSATION] * len(rows)}
        self.batch["index"] = list(range(len(rows)))
        self.batch |= {} if texts is None else {TURN_TEXTS: texts}

    def laid_out(self, weight: float = 1.0) -> tuple[Settled, Tensor]:
        """Return the settled batch and the (rows, tokens) rewards of `r`, float64."""
        self.stack.evaluate(**self.batch)
        self.stack.place_turns([[bool(one) for one in row] for row in MASKS])
        outcomes = [self.stack.outcomes[name] for name in self.stack.names]
        raw, fixed = (matrix([getattr(outcome, part) for outcome in outcomes]) for part in ("raw", "fixed"))
        weights = torch.tensor([0.0, weight], dtype=torch.float64)
        settled, _ = settle(raw, fixed, weights, SettleRules(self.stack.components, num_generations=2), {})
        in_completion = torch.tensor([[1] * 7 + [0], [1] * 6 + [0] * 2]).bool()
        values, _ = token_rewards(self.stack.token_values, settled, in_completion, slice(0, 2))
        return settled, values[1].double()


@pytest.mark.parametrize(
    ("spread", "expected"),
    [
        ("last", [[0, 1, 0, 0, 0, 0, 5, 0], [0, 0, 2, 0, 0, -3, 0, 0]]),
        ("even", [[0.5, 0.5, 0, 0, 5 / 3, 5 / 3, 5 / 3, 0], [2 / 3, 2 / 3, 2 / 3, 0, -1.5, -1.5, 0, 0]]),
    ],
)
def test_a_turn_pays_the_policys_tokens_only(spread: Any, expected: list[list[float]]) -> None:
    """A row is worth the sum of its turns."""
    settled, values = Case(spread=spread).laid_out(weight=2.0)
    assert settled.raw[:, 1].tolist() == [6.0, -1.0]
    assert_close(values, 2 * torch.tensor(expected, dtype=torch.float64))
    assert not values[~torch.tensor(MASKS).bool()].any()


def test_a_turn_without_a_reward_and_rules_for_the_row() -> None:
    """The offset of 1 falls on what is rewarded: one turn of the first row, both of the second."""
    _, values = Case([[None, 5.0], [2.0, -3.0]], offset=1.0).laid_out()
    assert values.tolist() == [[0, 0, 0, 0, 0, 0, 4, 0], [0, 0, 1.5, 0, 0, -3.5, 0, 0]]
    settled, values = Case(gates=(ScoreGate("open", low=1.0),)).laid_out()
    assert settled.unfilled[:, 1].tolist() == [6.0, 0.0]
    assert values.tolist() == [[0, 1, 0, 0, 0, 0, 5, 0], [0] * 8]
    settled, values = Case(normalize="batch").laid_out()
    deviation = torch.tensor([6.0, -1.0]).std().item()
    assert settled.unfilled[:, 1].tolist() == pytest.approx([6 / deviation, -1 / deviation])
    assert values.sum(dim=1).tolist() == pytest.approx([6 / deviation, -1 / deviation])


def test_with_gamma_1_the_first_turn_gets_the_rewards_of_both() -> None:
    """trlX issue 79: s1 and s2 are scored when both are known, and s1 led to s2.

    By hand: with lambda = 1 the return of a token is the sum of all later rewards, 1 + 5 in the first turn of row 0 and
    5 in the second, 2 - 3 and -3 in row 1; the advantage is that minus the value. With gamma 1/2 an action later counts
    half. Without turns, where the sum lies on the last token, the second turn of row 0 would get 6.
    """
    _, rewards = Case().laid_out()
    values = torch.linspace(-1, 1, 16, dtype=torch.float64).reshape(2, 8)
    acts = torch.tensor(MASKS).bool()

    def returns(gamma: float) -> Tensor:
        ends = {"last_values": torch.zeros(2).double(), "is_truncated": torch.zeros(2).bool()}
        advantages, returned = gae(rewards, values, acts, **ends, gamma=gamma, lam=1.0)
        assert_equal(advantages, (returned - values).where(acts, 0.0))
        return returned

    by_hand = [[6, 6, 0, 0, 5, 5, 5, 0], [-1, -1, -1, 0, -3, -3, 0, 0]]
    assert_equal(returns(1.0), torch.tensor(by_hand).double())
    first = [0.5 + 5 / 16, 1 + 5 / 8, 0, 0, 5 / 4, 5 / 2, 5, 0]
    second = [0.5 - 3 / 16, 1 - 3 / 8, 2 - 3 / 4, 0, -1.5, -3, 0, 0]
    assert_equal(returns(0.5), torch.tensor([first, second]).double())


@pytest.mark.parametrize(
    ("row", "got"),
    [
        ([1.0], "1 numbers for 2 turns"),  # a list of one number is not taken for a plain score
        ([], "0 numbers for 2 turns"),
        (1.0, "float: 1.0"),
        (["a", 1.0], "turn 0"),
        ([1.0, float("nan")], "turn 1"),
    ],
    ids=str,
)
def test_another_number_of_turns_is_an_error(row: Any, got: str) -> None:
    with pytest.raises(RewardError) as caught:
        Case([[1.0, 2.0], row]).laid_out()
    error = caught.value
    assert (error.where, error.row) == ("rewards.r", 1)
    assert got in str(error.got)
    assert "per turn" in str(error.expected)


def test_the_same_lists_are_tokens_without_per_turn() -> None:
    """The negative control: two numbers for a completion of another length."""
    case = Case(per=None)
    with pytest.raises(RewardError, match="values per token"):
        case.stack.evaluate(**case.batch, completion_ids=[[1, 2, 3]] * 2)


def test_a_mask_without_a_gap_is_an_error_of_the_rollout() -> None:
    case = Case()
    case.stack.evaluate(**case.batch)
    with pytest.raises(RewardError, match="row 0") as caught:
        case.stack.place_turns([[True] * 8, [True] * 8])
    assert "1 turns" in str(caught.value.got)
    case.stack.place_turns([[False] * 8, [False] * 8])  # rows that count nowhere


def test_parts_are_turns() -> None:
    case = Case()
    case.laid_out()
    call = 'calc({"a": 2})'
    assert case.stack.parts("r", 0) == [ScoredPart(0, 0, call, 1.0, (1,)), ScoredPart(0, 8, "It is 4.", 5.0, (6,))]
    texts = Case(texts=[["ab", "b"], ["ab", "b"]], completions=["ab-b", "ab-b"])
    texts.laid_out()
    assert texts.stack.parts("r", 1) == [ScoredPart(0, 2, "ab", 2.0, (2,)), ScoredPart(3, 4, "b", -3.0, (5,))]


def test_a_rollout_function_tells_its_turns() -> None:
    def rollout(prompts: list[str], trainer: object) -> dict[str, Any]:
        return {"completion_ids": [[1, 2, 3, 4], [5, 6]], "env_mask": [[1, 0, 1, 1], [1, 1]], "s1": prompts}

    found = with_turn_texts(rollout, str, ["p", "q"], None)
    assert found[TURN_TEXTS] == [["[1]", "[3, 4]"], ["[5, 6]"]]
    assert found["s1"] == ["p", "q"]
    unmasked = with_turn_texts(lambda *_: {"completion_ids": [[1, 2]]}, str, ["p"], None)
    assert unmasked[TURN_TEXTS] == [["[1, 2]"]]
    assert runs_of([True, False, False, True, True]) == [[0], [3, 4]]
