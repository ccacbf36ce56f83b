"""A dense reward, or one per turn, under offset, clip, normalise, weight and gate: every token by loops in float64."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
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
from tests.support.tolerances import ARITHMETIC, assert_close, assert_equal

Tokens = list[float | None]
LaidOut = tuple[Settled, Tensor, Tensor]


def laid_out(stack: RewardStack, weights: Sequence[float], lengths: list[int], width: int) -> LaidOut:
    """Settle the last batch in groups of two; return also the rewards (K, rows, tokens), and where there are any."""

    def matrix(part: str) -> Tensor:
        columns = [getattr(stack.outcomes[name], part) for name in stack.names]
        values = [[math.nan if one is None else one for one in column] for column in columns]
        return torch.tensor(values, dtype=torch.float64).T

    rules = SettleRules(stack.components, num_generations=2)
    settled, _ = settle(matrix("raw"), matrix("fixed"), torch.tensor(weights).double(), rules, {})
    is_there = torch.arange(width) < torch.tensor(lengths).unsqueeze(1)
    return settled, *token_rewards(stack.token_values, settled, is_there, slice(0, len(lengths)))


DENSE: list[Tokens] = [[1.0, -0.99], [0.5, None, 3.0], [None, -4.0, 1.0, 0.0], [2.0]]
SUMS, LENGTHS = [0.01, 3.5, -3.0, 2.0], [2, 3, 4, 1]
PLAIN = [7.0, 5.0, 3.0, 1.0]


def of_dense(weights: tuple[float, float] = (1.0, 1.0), **rules: Any) -> LaidOut:
    """A dense reward and a plain one on four rows, padded to five tokens."""
    stack = RewardStack(
        [
            Component("passes", lambda **_: [1.0, 0.0, 1.0, 1.0], weight=0.0),
            Component("dense", lambda row, **_: [DENSE[index] for index in row], **rules),
            Component("plain", lambda **_: list(PLAIN)),
        ]
    )
    ids = [[0] * length for length in LENGTHS]
    stack.evaluate(prompts=["p"] * 4, completions=["c"] * 4, completion_ids=ids, row=[0, 1, 2, 3])
    return laid_out(stack, (0.0, *weights), LENGTHS, 5)


@pytest.mark.parametrize(
    ("normalize", "spans"), [("none", []), ("batch", [(0, 4)]), ("group", [(0, 2), (2, 4)]), ("running", [(0, 4)])]
)
@pytest.mark.parametrize(("low", "high"), [(-math.inf, math.inf), (-1.5, 1.0), (0.5, 2.0)])
@pytest.mark.parametrize("offset", [0.0, 0.5])
def test_token_by_token(offset: float, low: float, high: float, normalize: str, spans: list[tuple[int, int]]) -> None:
    """r'_t = weight / divisor * (r_t + (clip(S - offset) - S) / n) at the n tokens that the reward names.

    Normalising divides by the deviation of what offset and clip made of the rows' sums, of four or of two.
    """
    moved = [min(max(one - offset, low), high) for one in SUMS]
    divisors = [1.0] * 4
    for start, end in spans:
        divisors[start:end] = [statistics.stdev(moved[start:end])] * (end - start)
    clip = None if high == math.inf else (low, high)
    settled, values, is_rewarded = of_dense((-0.5, 2.0), offset=offset, clip=clip, normalize=normalize)
    for row, tokens in enumerate(DENSE):
        shift = (moved[row] - SUMS[row]) / (len(tokens) - tokens.count(None))
        expected = [0.0 if token is None else -0.5 / divisors[row] * (token + shift) for token in tokens]
        assert values[1, row].tolist() == pytest.approx([*expected, *[0.0] * (5 - len(tokens))], rel=1e-6, abs=1e-7)
        last = len(tokens) - 1  # of the plain reward
        is_there = [place == last or token is not None for place, token in enumerate(tokens)]
        assert is_rewarded[row].tolist() == [*is_there, *[False] * (5 - len(tokens))]
        assert values[2, row].tolist() == [2.0 * PLAIN[row] * (place == last) for place in range(5)]
    # A row's tokens are its total, which is what is logged and what an evaluation has.
    assert_close(values.sum(dim=(0, 2)), settled.totals)


def test_without_rules_token_values_are_unchanged() -> None:
    """Ten times 0.1, added one by one, is 1 - 1.1e-16: the rest is not added to a token."""
    stack = RewardStack([Component("dense", lambda **_: [[0.1] * 10])])
    stack.evaluate(prompts=["p"], completions=["c"], completion_ids=[[0] * 10])
    assert stack.token_values("dense", 0, 1.0) == [0.1] * 10


def test_a_closed_gates_number_is_not_offset_and_lies_on_the_last_token() -> None:
    """In the row that is open, a total rescaled onto [1, -0.99] would be [-49, 48.5]: that was wrong once."""
    _, values, _ = of_dense(offset=0.5, gates=(ScoreGate("passes", low=1.0, otherwise=-2.0),))
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


# One number per turn: counted when the reward is called, placed by the mask, paid by GAE to what came before.

CALL = {"type": "function", "function": {"name": "calc", "arguments": {"a": 2}}}
CONVERSATION = [
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "name": "calc", "content": "4"},
    {"role": "assistant", "content": "It is 4."},
]
ACTS = torch.tensor([[1, 1, 0, 0, 1, 1, 1, 0], [1, 1, 1, 0, 1, 1, 0, 0]]).bool()
"""Two rows of two turns: tokens 0 and 1, then 4 to 6; tokens 0 to 2, then 4 and 5. Tokens 2, 3 and 3 are a tool's."""
TURNS: list[Any] = [[1.0, 5.0], [2.0, -3.0]]


def on_turns(rows: list[Any] = TURNS, *, more: dict[str, Any] | None = None, **rules: Any) -> RewardStack:
    """A stack that has scored two conversations of a group with a reward per turn."""
    scored = Component("r", lambda index, **_: [rows[row] for row in index], per="turn", **rules)
    stack = RewardStack([Component("open", lambda **_: [1.0, 0.0], weight=0.0), scored])
    batch: dict[str, Any] = {"prompts": ["p"] * 2, "completions": [CONVERSATION] * 2, "index": [0, 1]}
    stack.evaluate(**batch | (more or {}))
    return stack


def of_turns(*rows: Any, weight: float = 1.0, **rules: Any) -> tuple[Settled, Tensor]:
    """Return the settled batch and the (rows, tokens) rewards, float64."""
    stack = on_turns([*rows] or TURNS, **rules)
    stack.place_turns(ACTS.tolist())
    settled, values, _ = laid_out(stack, (0.0, weight), [7, 6], 8)
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
    settled, values = of_turns(spread=spread, weight=2.0)
    assert settled.raw[:, 1].tolist() == [6.0, -1.0]
    assert_close(values, 2 * torch.tensor(expected, dtype=torch.float64))
    assert not values[~ACTS].any()


def test_a_turn_without_a_reward_and_rules_for_the_row() -> None:
    """The offset of 1 falls on what is rewarded: one turn of the first row, both of the second."""
    _, values = of_turns([None, 5.0], [2.0, -3.0], offset=1.0)
    assert values.tolist() == [[0, 0, 0, 0, 0, 0, 4, 0], [0, 0, 1.5, 0, 0, -3.5, 0, 0]]
    settled, values = of_turns(gates=(ScoreGate("open", low=1.0),))
    assert settled.unfilled[:, 1].tolist() == [6.0, 0.0]
    assert values.tolist() == [[0, 1, 0, 0, 0, 0, 5, 0], [0] * 8]
    settled, values = of_turns(normalize="batch")
    deviation = statistics.stdev([6.0, -1.0])
    assert settled.unfilled[:, 1].tolist() == pytest.approx([6 / deviation, -1 / deviation])
    assert values.sum(dim=1).tolist() == pytest.approx([6 / deviation, -1 / deviation])


def test_with_gamma_1_the_first_turn_gets_the_rewards_of_both() -> None:
    """trlX issue 79: s1 and s2 are scored when both are known, and s1 led to s2.

    By hand: with lambda = 1 the return of a token is the sum of all later rewards, 1 + 5 in the first turn of row 0 and
    5 in the second, 2 - 3 and -3 in row 1; the advantage is that minus the value. With gamma 1/2 an action later counts
    half. Without turns, where the sum lies on the last token, the second turn of row 0 would get 6.
    """
    _, rewards = of_turns()
    values = torch.linspace(-1, 1, 16, dtype=torch.float64).reshape(2, 8)

    def returns(gamma: float) -> Tensor:
        ends = {"last_values": torch.zeros(2).double(), "is_truncated": torch.zeros(2).bool()}
        advantages, returned = gae(rewards, values, ACTS, **ends, gamma=gamma, lam=1.0)
        assert_equal(advantages, (returned - values).where(ACTS, 0.0))
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
        *(([], "0 numbers for 2 turns"), ([1.0, 2.0, 3.0], "3 numbers for 2 turns")),
        (1.0, "float: 1.0"),
        (["a", 1.0], "turn 0"),
        ([1.0, float("nan")], "turn 1"),
    ],
    ids=str,
)
def test_another_number_of_turns_is_an_error(row: Any, got: str) -> None:
    with pytest.raises(RewardError) as caught:
        on_turns([[1.0, 2.0], row])
    error = caught.value
    assert (error.where, error.row) == ("rewards.r", 1)
    assert got in str(error.got)
    assert "per turn" in str(error.expected)


def test_a_mask_without_a_gap_is_an_error_of_the_rollout() -> None:
    stack = on_turns()
    with pytest.raises(RewardError, match="row 0") as caught:
        stack.place_turns([[True] * 8, [True] * 8])
    assert "1 turns" in str(caught.value.got)
    stack.place_turns([[False] * 8, ACTS.tolist()[1]])  # the first row counts nowhere
    assert stack.outcomes["r"].tokens == [None, [None, None, 2.0, None, None, -3.0]]


def test_parts_are_turns() -> None:
    stack = on_turns()
    stack.place_turns(ACTS.tolist())
    assert stack.outcomes["r"].tokens[0] == [None, 1.0, None, None, None, None, 5.0]
    call = 'calc({"a": 2})'
    assert stack.parts("r", 0) == [ScoredPart(0, 0, call, 1.0, (1,)), ScoredPart(0, 8, "It is 4.", 5.0, (6,))]
    stack = on_turns(more={TURN_TEXTS: [["ab", "b"]] * 2, "completions": ["ab-b"] * 2})
    assert stack.parts("r", 1) == [ScoredPart(0, 2, "ab", 2.0, ()), ScoredPart(3, 4, "b", -3.0, ())]


def test_a_rollout_function_tells_its_turns() -> None:
    def rollout(prompts: list[str], trainer: object) -> dict[str, Any]:
        return {"completion_ids": [[1, 2, 3, 4], [5, 6]], "env_mask": [[1, 0, 1, 1], [1, 1]], "s1": prompts}

    found = with_turn_texts(rollout, str, ["p", "q"], None)
    assert found[TURN_TEXTS] == [["[1]", "[3, 4]"], ["[5, 6]"]]
    assert found["s1"] == ["p", "q"]
    unmasked = with_turn_texts(lambda *_: {"completion_ids": [[1, 2]]}, str, ["p"], None)
    assert unmasked[TURN_TEXTS] == [["[1, 2]"]]
    assert runs_of([True, False, False, True, True]) == [[0], [3, 4]]
