"""The nearest name: slips of fingers are counted as in the literature, and what is like nothing gets no name."""

from __future__ import annotations

import pytest

from rlhf_cli.text.suggest import nearest, slips


@pytest.mark.parametrize(
    ("one", "other", "distance"),
    [
        ("kitten", "sitting", 3),  # Levenshtein's own: two replaced, one added
        ("ca", "abc", 3),  # restricted: what was swapped is not touched again (2 where it may be)
        ("wieght", "weight", 1),
        ("abcd", "acbd", 1),
        ("a cat", "an act", 2),
        ("", "abc", 3),
        ("same", "same", 0),
    ],
)
def test_the_distance_is_that_of_the_literature(one: str, other: str, distance: int) -> None:
    assert slips(one, other) == slips(other, one) == distance


@pytest.mark.parametrize(
    ("typed", "valid", "meant"),
    [
        ("po", ["cpo", "dpo", "ppo", "tpo"], "ppo"),  # all are one letter away: the same first letter
        ("mpo", ["cpo", "gmpo"], "gmpo"),  # all that was typed stands in it
        ("reporr", ["score", "report", "reported"], "report"),
        ("adamw", ["adamw_torch", "adamw_torch_fused", "grokadamw"], "adamw_torch"),
        ("per_device_batch_size", ["batch_size", "per_device_train_batch_size"], "per_device_train_batch_size"),
        ("Max-Steps", ["max_length", "max_steps"], "max_steps"),
    ],
)
def test_what_was_meant(typed: str, valid: list[str], meant: str) -> None:
    assert nearest(typed, valid) == meant


@pytest.mark.parametrize(
    ("typed", "valid"),
    [
        ("max_prompt_length", ["max_completion_length", "max_length"]),
        ("banana", ["learning_rate", "beta", "lambda"]),
        ("qq", ["kl", "lr"]),
        ("-k", ["-m", "-j", "--json"]),
        ("x", ["y", "z"]),
        ("", ["a"]),
        ("a", []),
    ],
)
def test_nothing_rather_than_something_absurd(typed: str, valid: list[str]) -> None:
    assert nearest(typed, valid) is None
    assert nearest(typed, valid) is None
