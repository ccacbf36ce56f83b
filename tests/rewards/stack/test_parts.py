"""What each part of a completion and each of its tokens got: spans, runs of tokens, plain scores on the last one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from rlhf_cli.rewards.stack.component import Component
from rlhf_cli.rewards.stack.reward_matrix import Settled, last_token_rewards, token_rewards
from rlhf_cli.rewards.stack.reward_stack import RewardStack
from rlhf_cli.rewards.stack.token_offsets import ScoredPart, parts_of
from tests.support.reward_bench import Bench
from tests.support.settled_columns import NAN, Case, Rule, column

WORDS = {1: "ab", 2: "cd", 3: "\n", 9: ""}  # 9 ends a text
OFFSETS = [(0, 2), (2, 3), (3, 5), (5, 5)]
TEXT = "ab\ncd"


def decode(ids: Any) -> str:
    return "".join(WORDS[one] for one in ids)


def parts(row: Any, *, ids: list[int] | None = None, **rules: Any) -> list[ScoredPart] | None:
    """The parts of one completion whose reward returned `row`."""
    stack = RewardStack([Component("r", lambda completions, **_: [row], **rules)])
    stack.decode = decode
    batch = {"prompts": ["q"], "completions": [TEXT]} | ({} if ids is None else {"completion_ids": [ids]})
    stack.evaluate(**batch)
    return stack.parts("r", 0)


def test_spans_are_parts_in_text_order() -> None:
    """The two lines of a text got +1 and -1: the score is 0, and that is not all there is to say."""
    named = [(3, 5, 1.0), (0, 2, -1.0)]
    expected = [ScoredPart(0, 2, "ab", -1.0, (0,)), ScoredPart(3, 5, "cd", 1.0, (2,))]
    for spread in ("last", "even"):
        assert parts(named, ids=[1, 3, 2, 9], spread=spread) == expected
    assert sum(one.reward for one in expected) == 0.0


@pytest.mark.parametrize(("row", "has_parts"), [([1.0, None], True), (1.0, False)])
def test_only_a_row_of_several_values_has_parts(row: Any, has_parts: bool) -> None:
    stack = RewardStack([Component("r", lambda completions, **_: [row])])
    stack.decode = decode
    stack.evaluate(prompts=["q"], completions=["abcd"], completion_ids=[[1, 2]])
    assert stack.outcomes["r"].has_parts == has_parts


def test_a_span_has_all_tokens_that_it_touches() -> None:
    (one,) = parts([(1, 4, 2.0)], ids=[1, 3, 2, 9]) or []
    assert (one.text, one.tokens) == ("b\nc", (0, 1, 2))


def test_neighbouring_tokens_of_one_value_are_a_part() -> None:
    values = [0.5, 0.5, None, -1.0]
    assert parts(values, ids=[1, 3, 2, 9]) == [ScoredPart(0, 3, "ab\n", 1.0, (0, 1)), ScoredPart(5, 5, "", -1.0, (3,))]
    assert parts_of(TEXT, [None, None, None, None], OFFSETS, None) == []


def test_without_tokens_a_character_is_one() -> None:
    assert parts([(0, 2, 1.0)]) == [ScoredPart(0, 2, "ab", 1.0, (0, 1))]
    assert parts([1.0, 1.0, None, 0.0, 2.0]) == [
        *(ScoredPart(0, 2, "ab", 2.0, (0, 1)), ScoredPart(3, 4, "c", 0.0, (3,)), ScoredPart(4, 5, "d", 2.0, (4,)))
    ]
    # One value per token of a text whose tokens are unknown.
    assert parts([1.0, -3.0]) == [ScoredPart(0, 5, TEXT, -2.0, (0, 1))]


TEXTS = {"prompts": ["p"] * 3, "completions": ["abc", "de", ""]}


def test_spans_of_characters_and_values_by_token(bench: Bench) -> None:
    """Two spans of one text count both; the number of tokens is unknown here."""
    rows = [[(0, 1, 0.5), (1, 3, 0.25)], [1.0, None, -0.25, 2.0], []]
    outcome = bench.stack(lambda completions, **_: rows).evaluate(**TEXTS)["mine"]
    assert outcome.raw == [0.75, 2.75, 0.0]
    assert outcome.errors == [None] * 3


def test_with_tokens_and_a_tokenizer_a_span_lies_on_its_tokens(bench: Bench) -> None:
    """Tokens of one, two and one characters: 1 .. 3 is the second's, and its last character alone is still there."""
    pieces = {5: "a", 6: "bc", 7: "d"}
    stack = bench.stack(lambda completions, **_: [[(1, 3, 0.5), (2, 3, 0.25), (3, 4, -1.0)]])
    stack.decode = lambda ids: "".join(pieces[token] for token in ids)
    outcome = stack.evaluate(prompts=["p"], completions=["abcd"], completion_ids=[[5, 6, 7]])["mine"]
    assert outcome.tokens == [[None, 0.75, -1.0]]
    assert outcome.raw == [-0.25]


IN_COMPLETION = torch.tensor([[1, 1, 1], [1, 1, 0], [0, 0, 0], [1, 0, 0]])
CUT_FIRST = torch.tensor([True, False, False, False])


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


def test_dense_scores_lie_on_their_tokens_and_plain_ones_on_the_last() -> None:
    """The row without tokens has no reward, and b does not apply to the last row."""
    rows = settled(column(2, 4, 6, 8), column(1, 1, 1, NAN), column(0, 0.5, 0, 0))
    values, is_rewarded = token_rewards(DenseRows().token_values, rows, IN_COMPLETION, slice(0, 4))
    assert values.tolist() == [
        [[1.0, 0.0, 3.0], [0.0, 8.0, 0.0], [0.0] * 3, [16.0, 0.0, 0.0]],
        [[0.0, 0.0, -1.0], [0.0, -1.0, 0.0], [0.0] * 3, [0.0] * 3],
        [[0.0] * 3, [0.0, 1.5, 0.0], [0.0] * 3, [0.0] * 3],
    ]
    # The environment's 0 on the last token is a reward, too.
    assert is_rewarded.tolist() == [[True, False, True], [False, True, False], [False] * 3, [True, False, False]]


def test_a_replaced_dense_row_has_everything_on_the_last_token() -> None:
    """a's 2 counts as a whole there: the penalty takes it back on the same token."""
    rows = replace(settled(column(2, 4, 6, 8), column(1, 1, 1, NAN), column(0, 0, 0, 0)), is_replaced=CUT_FIRST)
    values, is_rewarded = token_rewards(DenseRows().token_values, rows, IN_COMPLETION, slice(0, 4))
    assert values[0, 0].tolist() == [0.0, 0.0, 4.0]
    assert is_rewarded[0].tolist() == [False, False, True]


def test_a_dense_row_is_asked_for_with_what_divides_it() -> None:
    """2, 4, 6, 8 around 5 deviate by sqrt(20 / 3)."""
    rows, stack = settled(column(2, 4, 6, 8), column(1, 1, 1, 1), column(0, 0, 0, 0), normalize="batch"), DenseRows()
    token_rewards(stack.token_values, rows, IN_COMPLETION, slice(0, 4))
    asked = {(name, row): divisor for name, row, divisor in stack.asked}
    deviation = (20 / 3) ** 0.5
    of_a = {row: one for (name, row), one in asked.items() if name == "a"}
    assert of_a == {row: pytest.approx(deviation, rel=1e-9) for row in (0, 1, 3)}
    assert {one for (name, _), one in asked.items() if name == "b"} == {1.0}
    assert {name for name, _ in asked} == {"a", "b"}  # an environment's reward has no parts


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
