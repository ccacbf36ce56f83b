"""A published edit distance picks the nearest name; dissimilar words get none."""

from __future__ import annotations

import pytest

from rlhf_cli.text.suggest import nearest, slips


@pytest.mark.parametrize(
    ("one", "other", "distance"),
    [
        ("kitten", "sitting", 3),  # Levenshtein's example: two replaced, one added
        ("ca", "abc", 3),  # restricted distance: swapped letters are not edited again
        ("wieght", "weight", 1),
        ("abcd", "acbd", 1),
        ("a cat", "an act", 2),
        ("", "abc", 3),
    ],
)
def test_the_edit_distance(one: str, other: str, distance: int) -> None:
    assert slips(one, other) == slips(other, one) == distance


@pytest.mark.parametrize(
    ("typed", "valid", "meant"),
    [
        ("po", ["cpo", "dpo", "ppo", "tpo"], "ppo"),  # all are one letter away, so the first letter decides
        ("mpo", ["cpo", "gmpo"], "gmpo"),  # contains all typed letters
        ("reporr", ["score", "report", "reported"], "report"),
        ("adamw", ["adamw_torch", "adamw_torch_fused", "grokadamw"], "adamw_torch"),
        ("per_device_batch_size", ["batch_size", "per_device_train_batch_size"], "per_device_train_batch_size"),
        ("Max-Steps", ["max_length", "max_steps"], "max_steps"),
    ],
)
def test_the_nearest_name(typed: str, valid: list[str], meant: str) -> None:
    assert nearest(typed, valid) == meant


@pytest.mark.parametrize(
    ("typed", "valid"),
    [
        ("max_prompt_length", ["max_completion_length", "max_length"]),
        ("banana", ["learning_rate", "beta", "lambda"]),
        ("qq", ["kl", "lr"]),
        ("-k", ["-m", "-j", "--json"]),
        ("", ["a"]),
        ("a", []),
    ],
)
def test_no_name_for_dissimilar_words(typed: str, valid: list[str]) -> None:
    assert nearest(typed, valid) is None
