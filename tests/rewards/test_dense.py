"""Parts of a completion that are rewarded each for itself: sentences, lines and matches."""

from __future__ import annotations

import random
import re
import time
from typing import Any

import pytest

from rlhf_cli.errors import RewardError
from rlhf_cli.rewards.dense import split_spans


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
        ("no end", ["no end"]),
        ("  ", []),
        ("", []),
        ("...", ["..."]),
        ("Dr. No", ["Dr.", "No"]),  # as documented
    ],
)
def test_sentences(text: str, expected: list[str]) -> None:
    assert parts(text, "sentences") == expected


def test_lines() -> None:
    assert parts("a\n\n  b \r\nc\rd. e\n", "lines") == ["a", "b", "c", "d. e"]


def test_regex() -> None:
    text = "Step 1: add\nStep 2: say 7"
    assert parts(text, regex=r"(?=Step [0-9])") == ["Step 1: add", "Step 2: say 7"]
    assert parts(text, regex=r"Step [0-9]: ") == ["add", "say 7"]
    assert parts("a,b,,c", regex=re.compile(",")) == ["a", "b", "c"]
    assert parts("ab", regex="") == ["a", "b"]
    assert parts("a b", regex="x") == ["a b"]


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
