"""Spans of a dense reward are in the text that its author reads, also where the tokens hold more than that text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from rlhf_cli.errors import RewardError
from rlhf_cli.rewards.completion_text import text_of
from rlhf_cli.rewards.stack.component import Component
from rlhf_cli.rewards.stack.reward_stack import RewardStack


def decode(ids: Sequence[int]) -> str:
    """A character a token; 0 is a special token without text."""
    return "".join(chr(one) for one in ids if one)


def ids_of(text: str) -> list[int]:
    return [*map(ord, text), 0]


CALL: dict[str, Any] = {"role": "assistant", "content": "", "tool_calls": [{"type": "function"}]}
CASES: dict[str, tuple[Any, str, list[int]]] = {  # completion, decoded tokens, the tokens of its text
    "plain text": ("136", "136", [0, 1, 2]),
    "a message": ([{"role": "assistant", "content": "136"}], "136", [0, 1, 2]),
    "a tool's result that is the answer": (
        [CALL, {"role": "tool", "content": "136"}, {"role": "assistant", "content": "136"}],
        "[76+60]136>136",
        [11, 12, 13],
    ),
    "two messages": (
        [
            {"role": "assistant", "content": "ab"},
            {"role": "tool", "content": "ab"},
            {"role": "assistant", "content": "c"},
        ],
        "ab<ab>c",
        [0, 1, None, 6],  # type: ignore[list-item]
    ),
    "content before its call": (
        [{**CALL, "content": "76"}, {"role": "tool", "content": "7"}, {"role": "assistant", "content": "7!"}],
        "76[76]7>7!",
        [0, 1, None, 8, 9],  # type: ignore[list-item]
    ),
    "thinking that was parsed out": (
        [{"role": "assistant", "content": "no", "reasoning_content": "no, no"}],
        "<no, no>no",
        [8, 9],
    ),
    "parts": ([{"role": "assistant", "content": [{"type": "text", "text": "yes"}]}], "\nyes", [1, 2, 3]),
}


@pytest.mark.parametrize("name", CASES)
def test_a_span_lies_on_the_tokens_of_its_characters(name: str) -> None:
    completion, decoded, tokens = CASES[name]
    text = text_of(completion)
    places = [place for place, token in enumerate(tokens) if token is not None]
    assert len(tokens) == len(text)

    def fn(completions: Any, **_: Any) -> list[list[tuple[int, int, float]]]:
        return [[(place, place + 1, float(place + 1)) for place in places]]

    stack = RewardStack([Component("fn", fn)])
    stack.decode = decode
    stack.evaluate(prompts=["p"], completions=[completion], completion_ids=[ids_of(decoded)])
    values = stack.outcomes["fn"].tokens[0]
    assert values is not None
    assert {token: value for token, value in enumerate(values) if value is not None} == {
        tokens[place]: float(place + 1) for place in places
    }
    parts = stack.parts("fn", 0)
    assert parts is not None
    assert [part.text for part in parts] == [text[place] for place in places]


def test_a_message_that_is_not_in_the_tokens_is_an_error() -> None:
    """A span at a wrong place would be worse than none."""
    stack = RewardStack([Component("fn", lambda **_: [[(0, 1, 1.0)]])])
    stack.decode = decode
    with pytest.raises(RewardError):
        stack.evaluate(
            prompts=["p"], completions=[[{"role": "assistant", "content": "other"}]], completion_ids=[ids_of("[1+1]")]
        )
