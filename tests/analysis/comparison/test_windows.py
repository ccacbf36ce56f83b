"""What of a curve is compared, by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rlhf_cli.analysis.comparison.metric_columns import Series, Window, parse_window
from rlhf_cli.errors import UserError


def curve(*values: float, steps: list[int] | None = None) -> Series:
    return Series(np.array(steps or range(1, len(values) + 1)), np.array(values, dtype=float))


def test_a_tenth_of_the_events_and_at_least_one() -> None:
    assert Window().of(curve(*range(20))) == 18.5
    assert Window().of(curve(1.0, 2.0, 4.0)) == 4.0
    assert Window("first").of(curve(*range(20))) == 0.5


def test_so_many_events() -> None:
    assert parse_window("last-2").of(curve(1.0, 2.0, 4.0)) == 3.0


@pytest.mark.parametrize("kind", ["last", "first", "best"])
def test_of_more_events_than_there_are_all_count(kind: str) -> None:
    """Also of a stretch that is the best: a convolution with more ones than events has as many values as the ones."""
    assert Window(kind, 99).of(curve(1.0, 2.0, 6.0)) == 3.0
    assert Window(kind, 99).of(curve(-6.0, -3.0), more_is_better=False) == -4.5


def test_the_best_stretch_is_the_best_running_mean() -> None:
    """Running means of two: 1.5, 3, 2.5, 0.5. One lucky event of 30 in thirty (width 3) is worth a third of it."""
    noisy = curve(1.0, 2.0, 4.0, 1.0, 0.0)
    window = Window("best", 2)
    assert window.of(noisy) == 3.0
    assert window.of(noisy, more_is_better=False) == 0.5
    assert Window("best").of(curve(*[0.0] * 15, 1.0, *[0.0] * 14)) == pytest.approx(1 / 3)


@pytest.mark.parametrize("width", [6, 7, 10, 24, 38])
def test_a_stretch_of_ones_is_one(width: int) -> None:
    """What is right every time is expected to be `at_least: 1`; six times a sixth is less in floats."""
    assert Window("best", width).of(curve(*[1.0] * 50)) == 1.0


def test_the_area_is_per_step_however_seldom_was_logged() -> None:
    """A line from 0 to 1 has the mean 1/2; logged at 0, 1 and 10 it has it still, and the plain mean would be 0.37."""
    assert Window("auc").of(curve(0.0, 0.1, 1.0, steps=[0, 1, 10])) == pytest.approx(0.5)
    assert Window("auc").of(curve(0.7)) == 0.7


def test_null_is_an_event_without_a_number() -> None:
    """Of four events the last two: null and 4."""
    assert Window("last", 2).of(curve(1.0, 2.0, 4.0, math.nan)) == 4.0
    assert math.isnan(Window("last", 1).of(curve(1.0, math.nan)))
    assert math.isnan(Window().of(curve()))
    assert Window("auc").of(curve(0.0, math.nan, 1.0)) == 0.5


def test_a_stretch_with_null_is_no_best_stretch() -> None:
    """Of -4, -2, null, -3, -3 the means of two are -3 and -3 beside those with a null, which are not 0 and not -2."""
    assert Window("best", 2).of(curve(-4.0, -2.0, math.nan, -3.0, -3.0)) == -3.0
    assert Window("best", 2).of(curve(4.0, 2.0, math.nan, 3.0, 3.0), more_is_better=False) == 3.0
    assert Window("best", 2).of(curve(1.0, math.nan, 2.0)) == 2.0  # no stretch is whole: the best event


@pytest.mark.parametrize(
    ("typed", "window", "words"),
    [
        ("last", Window(), "mean of the last tenth of the log events"),
        ("first", Window("first"), "mean of the first tenth of the log events"),
        ("best", Window("best"), "best mean of a tenth of the log events in a row"),
        ("last-1", Window("last", 1), "mean of the last 1 log events"),
        ("last:20", Window("last", 20), "mean of the last 20 log events"),
        ("auc", Window("auc"), "area under the curve per step (mean over the whole run)"),
    ],
)
def test_what_a_word_means(typed: str, window: Window, words: str) -> None:
    assert parse_window(typed) == window
    assert (str(window), window.in_words) == (typed.replace(":", "-"), words)


@pytest.mark.parametrize("typed", ["last-0", "tenth", "last-x", ""])
def test_another_word_is_refused(typed: str) -> None:
    with pytest.raises(UserError, match="no such window") as caught:
        parse_window(typed)
    error = caught.value
    assert (error.where, error.got, error.hint) == ("--window", typed, "--window last-20")
    assert str(error.expected).startswith("last (a tenth of the log events), last-K")
