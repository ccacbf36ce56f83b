"""Completions that have the tags they should, once and in order."""

from __future__ import annotations

import pytest

from rlhf_cli.rewards.tags import format_tags


@pytest.mark.parametrize(
    ("text", "strict", "soft"),
    [
        ("<think>a</think><answer>b</answer>", 1.0, 1.0),
        (" <think>\na\n</think>\n\n<answer>b</answer>\n", 1.0, 1.0),
        ("Sure! <think>a</think><answer>b</answer>", 0.0, 1.0),
        ("<think>a</think> so <answer>b</answer>", 0.0, 1.0),
        ("<think>a</think><answer>b</answer> done", 0.0, 1.0),
        ("<think>a</think>b", 0.0, 0.5),
        ("<answer>b</answer>", 0.0, 0.5),
        ("<answer>b</answer><think>a</think>", 0.0, 0.5),  # the second is before the first
        ("<think>a<answer>b</answer></think>", 0.0, 0.5),  # inside, so not after
        ("<think>a</think><answer>b", 0.0, 0.5),  # cut off
        ("b", 0.0, 0.0),
        ("", 0.0, 0.0),
    ],
)
def test_think_answer(text: str, strict: float, soft: float) -> None:
    assert format_tags([text]) == [strict]
    assert format_tags([text], mode="soft") == [soft]


@pytest.mark.parametrize(
    ("text", "prefilled", "expected"),
    [
        ("a</think><answer>b</answer>", True, 1.0),
        ("a</think><answer>b</answer>", False, 0.0),
        ("<think>a</think><answer>b</answer>", True, 0.0),  # opened twice
    ],
)
def test_prefilled(text: str, prefilled: bool, expected: float) -> None:
    assert format_tags([text], prefilled=prefilled) == [expected]


def test_other_tags_and_rows() -> None:
    completions = ["<plan>p</plan>", [{"role": "assistant", "content": "<plan>p</plan>!"}]]
    assert format_tags(completions, tags=["plan"]) == [1.0, 0.0]
    assert format_tags(completions, tags=["plan"], mode="soft") == [1.0, 1.0]
    assert format_tags(["<a.b>x</a.b>", "<acb>x</acb>"], tags=["a.b"]) == [1.0, 0.0]  # a name, not a pattern
