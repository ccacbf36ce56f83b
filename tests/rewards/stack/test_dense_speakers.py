"""The speakers' reward, and what a tabular policy learns from it with a value a token and without."""

from __future__ import annotations

from typing import Any

import pytest

from rlhf_cli.rewards.toy import score_speakers, speakers_larger


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A: 4\nB: 7", [(0, 4, -1.0), (5, 9, 1.0)]),
        ("A: 7\nB: 4", [(0, 4, 1.0), (5, 9, -1.0)]),
        (" \nA: 07\nB: 4\n", [(2, 7, 1.0), (8, 12, -1.0)]),
        ("A: 7\nB: 7", []),
        ("A: 7\nB: 10", -1.0),  # more than a speaker may say
        ("A: 7", -1.0),
        ("A: 4\nB: 7\nB: 8", -1.0),
        ("A: 4\nso\nB: 7", -1.0),
        ("A: 4, B: 7", -1.0),
        ("A: ٤\nB: 7", -1.0),
        ("A: 4\nB: " + "9" * 5000, -1.0),
        ("", -1.0),
    ],
)
def test_score(text: str, expected: Any) -> None:
    assert score_speakers(text, "A", "B", max_value=9) == expected


def test_rows() -> None:
    texts = ["A: 4\nB: 17", [{"role": "assistant", "content": "C: 1\nD: 0"}], "C: 1"]
    columns = {"speaker_a": ["A", "C", "C"], "speaker_b": ["B", "D", "D"]}
    spans = [[(0, 4, -2.0), (5, 10, 2.0)], [(0, 4, 2.0), (5, 9, -2.0)], -3.0]
    assert speakers_larger(texts, **columns, mass=2.0, malformed=-3.0) == spans
    limited = speakers_larger(texts, **columns, max_value=[9, "9", 9], mass=2.0, malformed=-3.0)
    assert limited == [-3.0, *spans[1:]]
