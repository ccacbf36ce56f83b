"""The text of a completion, plain or of messages, and the part of it that is the answer."""

from __future__ import annotations

from typing import Any

import pytest

from rlhf_cli.errors import RewardError
from rlhf_cli.rewards.completion_text import Completion, text_of
from rlhf_cli.rewards.reasoning_gym import extracted

TOOL_USE = [
    {"role": "assistant", "content": "Let me look.", "reasoning_content": "hm", "tool_calls": [{}]},
    {"role": "tool", "content": "42"},
    {"role": "assistant", "content": None, "tool_calls": [{}]},
    {"role": "assistant", "content": "It is 42."},
]


@pytest.mark.parametrize(
    ("completion", "plain", "with_reasoning"),
    [
        ("text", "text", "text"),
        ("", "", ""),
        ([], "", ""),
        ([{"role": "assistant", "content": "text"}], "text", "text"),
        ([{"content": "text"}], "text", "text"),
        (TOOL_USE, "Let me look.\nIt is 42.", "hm\nLet me look.\nIt is 42."),
        ([{"role": "assistant", "content": "a", "thinking": "b"}], "a", "b\na"),
        ([{"role": "assistant", "content": [{"type": "text", "text": "a"}, {"type": "image"}]}], "a", "a"),
    ],
)
def test_text(completion: Completion, plain: str, with_reasoning: str) -> None:
    assert text_of(completion) == plain
    assert text_of(completion, reasoning=True) == with_reasoning


@pytest.mark.parametrize("completion", [None, 7, ["text"], {"role": "assistant", "content": "text"}])
def test_neither_text_nor_messages(completion: Completion) -> None:
    with pytest.raises(RewardError):
        text_of(completion)


@pytest.mark.parametrize(
    ("extract", "text", "answer"),
    [
        ("tag", "so <answer>1</answer>, no, <answer>\n2 </answer>.", "2"),
        ("tag", "<answer>1</answer>", "1"),
        ("tag", "<answer>1", None),
        ("tag", "</answer> 1 <answer>", None),
        ("last_line", "3 + 4\n is \n 7 \n\n", "7"),
        ("last_line", " \n", None),
        ("all", " 3\n4 ", "3\n4"),
    ],
)
def test_the_part_of_a_completion_that_is_the_answer(extract: Any, text: str, answer: str | None) -> None:
    assert extracted(text, extract) == answer
