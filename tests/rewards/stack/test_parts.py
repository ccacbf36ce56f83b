"""What each part of a completion got: spans as they were named, runs of tokens with one value."""

from __future__ import annotations

from typing import Any

from rlhf_cli.rewards.stack.component import Component
from rlhf_cli.rewards.stack.gates import ScoreGate
from rlhf_cli.rewards.stack.reward_stack import RewardStack
from rlhf_cli.rewards.stack.token_offsets import ScoredPart, parts_of

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


def test_spans_are_parts_in_the_order_of_the_text() -> None:
    """The two lines of a text got +1 and -1: the score is 0, and that is not all there is to say."""
    named = [(3, 5, 1.0), (0, 2, -1.0)]
    expected = [ScoredPart(0, 2, "ab", -1.0, (0,)), ScoredPart(3, 5, "cd", 1.0, (2,))]
    for spread in ("last", "even"):
        assert parts(named, ids=[1, 3, 2, 9], spread=spread) == expected
    assert sum(one.reward for one in expected) == 0.0


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
    # As many values as the text had tokens once; which they were nobody knows.
    assert parts([1.0, -3.0]) == [ScoredPart(0, 5, TEXT, -2.0, (0, 1))]


def test_a_plain_score_and_a_row_behind_a_gate_have_no_parts() -> None:
    assert parts(1.0, ids=[1, 3, 2, 9]) is None
    shut = Component("shut", lambda completions, **_: [0.0])
    behind = Component(
        "r", lambda completions, **_: [[(0, 2, 1.0)]], gates=(ScoreGate("shut", 1.0, 2.0, 0.0),), eager=True
    )
    stack = RewardStack([shut, behind])
    stack.decode = decode
    stack.evaluate(prompts=["q"], completions=[TEXT], completion_ids=[[1, 3, 2, 9]])
    assert stack.parts("r", 0) is None
