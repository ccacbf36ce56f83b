"""Completions that equal the answer or match a pattern."""

from __future__ import annotations

import pytest

from rlhf_cli.rewards.match import exact_match, regex


@pytest.mark.parametrize(
    ("text", "answer", "options", "expected"),
    [
        ("Paris", "Paris", {}, 1.0),
        (" Paris\n", "Paris", {}, 1.0),
        (" Paris\n", "Paris", {"strip": False}, 0.0),
        ("paris", "Paris", {}, 0.0),
        ("paris", "Paris", {"ignore_case": True}, 1.0),
        ("STRASSE", "straße", {"ignore_case": True}, 1.0),  # lower() alone would say no
        ("Paris.", "Paris", {}, 0.0),
        ("", "Paris", {}, 0.0),
    ],
)
def test_exact(text: str, answer: str, options: dict[str, bool], expected: float) -> None:
    assert exact_match([text], [answer], **options) == [expected]


def test_exact_match_rows() -> None:
    completions = ["7", [{"role": "assistant", "content": "seven"}], "8", "9", "10"]
    answer = [7, ["7", "seven"], ["7", "seven"], None, []]
    assert exact_match(completions, answer) == [1.0, 1.0, 0.0, None, None]


@pytest.mark.parametrize(
    ("text", "pattern", "options", "expected"),
    [
        ("42", "[0-9]+", {}, 1.0),
        ("42 apples", "[0-9]+", {}, 0.0),
        ("42 apples", "[0-9]+", {"mode": "search"}, 1.0),
        ("apples", "[0-9]+", {"mode": "search"}, 0.0),
        (" 42\n", "[0-9]+", {}, 1.0),
        (" 42\n", "[0-9]+", {"strip": False}, 0.0),
        ("YES", "yes", {}, 0.0),
        ("YES", "(?i)yes", {}, 1.0),
        ("a\nb", "a.b", {}, 0.0),
        ("a\nb", "(?s)a.b", {}, 1.0),
    ],
)
def test_regex(text: str, pattern: str, options: dict[str, str], expected: float) -> None:
    assert regex([text, [{"role": "assistant", "content": text}]], pattern=pattern, **options) == [expected] * 2  # type: ignore[arg-type]
