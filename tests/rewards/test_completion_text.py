"""The text of a completion, its answer, and its parts: sentences, lines and matches."""

from __future__ import annotations

import random
import re
import time
from typing import Any

import pytest

from rlhf_cli.errors import RewardError
from rlhf_cli.rewards.completion_text import Completion, shown_text, text_of
from rlhf_cli.rewards.dense import split_spans
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
        ([], "", ""),
        ([{"content": "text"}], "text", "text"),
        (TOOL_USE, "Let me look.\nIt is 42.", "hm\nLet me look.\nIt is 42."),
        ([{"role": "assistant", "content": "a", "thinking": "b"}], "a", "b\na"),
        ([{"role": "assistant", "content": [{"type": "text", "text": "a"}, {"type": "image"}]}], "a", "a"),
    ],
)
def test_text(completion: Completion, plain: str, with_reasoning: str) -> None:
    assert text_of(completion) == plain
    assert text_of(completion, reasoning=True) == with_reasoning


def test_a_shown_message_has_its_thinking() -> None:
    """An answer that was cut while it thought has no content."""
    assert shown_text({"role": "assistant", "content": "", "reasoning_content": "hm"}) == "hm"
    called = {"thinking": "hm", "content": "", "tool_calls": [{"function": {"name": "add", "arguments": "1"}}]}
    assert shown_text(called) == "hm\nadd(1)"


@pytest.mark.parametrize("completion", [None, [{"content": "a"}, "text"], {"content": "text"}])
def test_neither_text_nor_messages(completion: Completion) -> None:
    with pytest.raises(RewardError):
        text_of(completion)


@pytest.mark.parametrize(
    ("extract", "text", "answer"),
    [
        ("tag", "so <answer>1</answer>, no, <answer>\n2 </answer>.", "2"),
        ("tag", "<answer>1", None),
        ("tag", "</answer> 1 <answer>", None),
        ("last_line", "3 + 4\n is \n 7 \n\n", "7"),
        ("last_line", " \n", None),
        ("all", " 3\n4 ", "3\n4"),
    ],
)
def test_the_part_of_a_completion_that_is_the_answer(extract: Any, text: str, answer: str | None) -> None:
    assert extracted(text, extract) == answer


def parts(text: str, *args: Any, **kwargs: Any) -> list[str]:
    return [text[start:end] for start, end in split_spans(text, *args, **kwargs)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One. Two!  Three?\nFour", ["One.", "Two!", "Three?", "Four"]),
        ("It is 3.14, or so... Yes?! No", ["It is 3.14, or so...", "Yes?!", "No"]),
        ('He said "no." Then (why?) left…', ['He said "no."', "Then (why?)", "left…"]),
        ("一共十八个。对吗？“对！”好", ["一共十八个。", "对吗？", "“对！”", "好"]),
        ("1. Add them. 2. Done.", ["1. Add them.", "2. Done."]),
        ("A heading\n\nA text that\ngoes on.", ["A heading", "A text that\ngoes on."]),
        ("  ", []),
        ("Dr. No", ["Dr.", "No"]),  # as documented
    ],
)
def test_sentences(text: str, expected: list[str]) -> None:
    assert parts(text, "sentences") == expected


def test_lines_and_what_is_between_matches() -> None:
    assert parts("a\n\n  b \r\nc\rd. e\n", "lines") == ["a", "b", "c", "d. e"]
    text = "Step 1: add\nStep 2: say 7"
    assert parts(text, regex=r"(?=Step [0-9])") == ["Step 1: add", "Step 2: say 7"]
    assert parts(text, regex=r"Step [0-9]: ") == ["add", "say 7"]
    assert parts("a,b,,c", regex=re.compile(",")) == ["a", "b", "c"]
    assert parts("ab", regex="") == ["a", "b"]


@pytest.mark.parametrize("kwargs", [{}, {"by": "words"}, {"by": "lines", "regex": "x"}, {"regex": "("}])
def test_refusals(kwargs: dict[str, Any]) -> None:
    with pytest.raises(RewardError):
        split_spans("a", **kwargs)


@pytest.mark.parametrize("by", ["sentences", "lines"])
def test_every_character_is_in_one_part(by: Any) -> None:
    rng = random.Random(0)
    for _ in range(500):
        text = "".join(rng.choice('ab1. !?…。！"”)\n\r\t😀') for _ in range(rng.randint(0, 25)))
        spans = split_spans(text, by)
        covered = [place for start, end in spans for place in range(start, end)]
        assert covered == sorted(set(covered))
        assert all(text[start:end] == text[start:end].strip() != "" for start, end in spans)
        assert {place for place, char in enumerate(text) if not char.isspace()} <= set(covered)


@pytest.mark.parametrize("unit", [".", ".x", ".)", "\n", "\n ", " ", "。", '"', "1. "])
def test_time_is_linear(unit: str) -> None:
    started = time.process_time()
    split_spans(unit * 100_000 + "x", "sentences")
    assert time.process_time() - started < 10.0  # quadratic time would be minutes
