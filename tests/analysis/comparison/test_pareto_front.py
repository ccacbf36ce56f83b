"""The front by hand."""

from __future__ import annotations

from math import nan

import pytest

from rlhf_cli.analysis.comparison.comparison import pareto_front

MEANS = {"a": (1.0, 3.0), "b": (2.0, 2.0), "c": (1.0, 2.0), "d": (3.0, 1.0), "e": (nan, 9.0)}


def test_what_no_other_is_better_than_in_everything() -> None:
    front = pareto_front(("x", "y"), (1, 1), MEANS)
    assert front.best == ("a", "b", "d")
    assert front.dominated == {"c": "a"}
    assert "e" not in front.means


def test_where_less_is_better() -> None:
    """With y the other way round d (3, 1) is best in both, and all that have numbers are below it."""
    front = pareto_front(("x", "y"), (1, -1), MEANS)
    assert front.best == ("d",)
    assert set(front.dominated) == {"a", "b", "c"}


def test_equal_settings_share_their_fate() -> None:
    front = pareto_front(("x", "y"), (1, 1), {"a": (1.0, 1.0), "b": (1.0, 1.0), "c": (1.0, 0.0), "d": (0.0, 1.0)})
    assert front.best == ("a", "b")
    assert front.dominated == {"c": "a", "d": "a"}


def test_a_third_measure_can_save_a_setting() -> None:
    two = {"a": (1.0, 1.0), "b": (0.0, 0.0)}
    assert pareto_front(("x", "y"), (1, 1), two).best == ("a",)
    three = {"a": (1.0, 1.0, 0.0), "b": (0.0, 0.0, 1.0)}
    assert pareto_front(("x", "y", "z"), (1, 1, 1), three).best == ("a", "b")


def test_a_sign_a_measure() -> None:
    with pytest.raises(ValueError, match="zip"):
        pareto_front(("x", "y"), (1,), {"a": (1.0, 2.0), "b": (2.0, 1.0)})
