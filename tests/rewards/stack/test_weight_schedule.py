"""Weights: a number, or a schedule that is worked out by hand here."""

from __future__ import annotations

import pytest

from rlhf_cli.rewards.stack.aggregating import Schedule, weight_at


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        # p = 0, 1/4, 1/2, 3/4, 1, and beyond; cosine: (1 - cos(pi/4)) / 2 = 0.14644661, its mirror 0.85355339
        ("linear", [2.0, 3.0, 4.0, 5.0, 6.0, 6.0]),
        ("cosine", [2.0, 2.58578644, 4.0, 5.41421356, 6.0, 6.0]),
        ("step", [2.0, 2.0, 2.0, 2.0, 6.0, 6.0]),
    ],
)
def test_shapes(shape: str, expected: list[float]) -> None:
    schedule = Schedule(2.0, 6.0, steps=4, shape=shape)  # type: ignore[arg-type]
    assert [weight_at(schedule, step, 100) for step in (0, 1, 2, 3, 4, 50)] == pytest.approx(expected)


def test_a_fraction_of_training() -> None:
    schedule = Schedule(1.0, 0.0, fraction=0.5)
    assert [schedule.at(step, 8) for step in (0, 1, 2, 4, 8)] == [1.0, 0.75, 0.5, 0.0, 0.0]
    # the same step of a run twice as long has gone half as far
    assert schedule.at(4, 16) == 0.5


def test_negative_control_steps_do_not_depend_on_the_length_of_training() -> None:
    schedule = Schedule(0.0, 1.0, steps=10)
    assert schedule.at(5, 10) == schedule.at(5, 1000) == 0.5
