"""Repeated n-grams of a completion, against TRL's own count over ids."""

from __future__ import annotations

import pytest
from trl.rewards.other_rewards import get_repetition_penalty_reward

from rlhf_cli.rewards.repetition import repetition


@pytest.mark.parametrize(
    ("text", "ngram_size", "expected"),
    [
        ("a b c d", 2, 0.0),
        ("a b a b", 2, -1 / 3),  # ab ba ab: 2 of 3 differ
        ("a a a a a", 2, -3 / 4),  # 1 of 4 differs
        ("A a a\na  a", 2, -3 / 4),  # case and spacing make no difference
        ("a a a a a", 1, -4 / 5),
        ("a a", 3, 0.0),  # too short
        ("a a a", 3, 0.0),  # a single n-gram repeats nothing
        ("", 3, 0.0),
        ("no no no " * 100, 3, -297 / 298),  # 300 words, 298 n-grams, one kind
    ],
)
def test_words(text: str, ngram_size: int, expected: float) -> None:
    assert repetition([text], ngram_size=ngram_size) == pytest.approx([expected], abs=1e-15)


def test_characters() -> None:
    assert repetition(["我我我我 我"], ngram_size=2, unit="characters") == [-0.75]
    assert repetition(["我我我我 我"], ngram_size=2) == [0.0]  # two words: in Chinese this unit sees nothing


@pytest.mark.parametrize("text", ["a b c d", "x y x y x", "the cat and the cat and the dog", "b b b b b b"])
@pytest.mark.parametrize("ngram_size", [1, 2, 3])
def test_same_share_as_trl_counts_over_ids(text: str, ngram_size: int) -> None:
    ids = [hash(word) for word in text.split()]
    theirs = get_repetition_penalty_reward(ngram_size=ngram_size, max_penalty=-1.0)(completion_ids=[ids])
    assert repetition([text], ngram_size=ngram_size) == pytest.approx(theirs, abs=1e-15)
