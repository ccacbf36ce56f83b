"""Rewards for a completion's length: a target and a ramp, in tokens, words and characters."""

from __future__ import annotations

import pytest

from rlhf_cli.errors import RewardError
from rlhf_cli.rewards.length import length_ramp, length_target


@pytest.mark.parametrize(
    ("length", "expected"), [(100, 1.0), (75, 0.5), (125, 0.5), (50, 0.0), (150, 0.0), (0, 0.0), (10_000, 0.0)]
)
def test_target(length: int, expected: float) -> None:
    assert length_target(["x" * length], target=100, width=50, unit="characters") == [expected]


@pytest.mark.parametrize(
    ("length", "shorter", "longer"), [(0, 1.0, 0.0), (50, 1.0, 0.0), (75, 0.75, 0.25), (150, 0.0, 1.0), (999, 0.0, 1.0)]
)
def test_ramp(length: int, shorter: float, longer: float) -> None:
    assert length_ramp(["x" * length], full=50, zero=150, unit="characters") == [shorter]
    assert length_ramp(["x" * length], full=150, zero=50, unit="characters") == [longer]


COMPLETIONS = ["one two  three", [{"role": "assistant", "content": "four", "reasoning_content": "hm hm"}], ""]
IDS = [[5, 6, 7, 2], [8, 2], [2]]


def test_rows() -> None:
    assert length_target(COMPLETIONS, IDS, target=2, width=2) == [0.0, 1.0, 0.5]
    assert length_target(COMPLETIONS, target=3, width=3, unit="words") == [1.0, 1.0, 0.0]
    assert length_ramp(COMPLETIONS, completion_ids=IDS, full=0, zero=4) == [0.0, 0.5, 0.75]
    assert length_ramp(COMPLETIONS, full=4, zero=0, unit="characters") == [1.0, 1.0, 0.0]


def test_bad_arguments() -> None:
    with pytest.raises(RewardError):
        length_target(["x"], target=1, width=1)
    with pytest.raises(RewardError):
        length_ramp(["x"], [[1]], full=5, zero=5)
