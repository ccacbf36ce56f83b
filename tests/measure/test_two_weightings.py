"""Two weightings of the same rows, worked by hand."""

from __future__ import annotations

import pytest

from rlhf_cli.measure.two_weightings import two_weightings

PROMPTS = ["a", "a", "b", "b", "c"]


def test_by_hand() -> None:
    """a: 2 > 1 becomes 1 < 3, another best; b: 5 > 4 stays. Ranks 1 2 3 4 5 of the rows 1 0 3 2 4 become 3 1 4 2 5...

    totals 2 1 5 4 9 have ranks 2 1 4 3 5, others 1 3 6 4 8 have 1 2 4 3 5: sum of squares 2, 1 - 6 * 2 / (5 * 24).
    """
    found = two_weightings(["w=1"], PROMPTS, [2.0, 1.0, 5.0, 4.0, 9.0], [1.0, 3.0, 6.0, 4.0, 8.0], None)
    assert (found.mean, found.other_mean) == (4.2, 4.4)
    assert found.ranks == pytest.approx(1 - 12 / 120)
    assert (found.num_prompts, found.num_other_best) == (2, 1)
    assert found.moved == ((0, -1.0), (1, 1.0))
    assert found.roc_auc is None


def test_the_same_weights_change_nothing() -> None:
    totals = [2.0, 1.0, 5.0, 5.0, None]
    found = two_weightings([], PROMPTS, totals, totals, [True, False, True, True, None])
    assert (found.ranks, found.num_other_best, found.moved) == (pytest.approx(1.0), 0, ())
    assert found.roc_auc == found.other_roc_auc == 1.0
    assert found.num_prompts == 1  # where all answers to a prompt tie, none is best


def test_a_tie_for_the_best_is_no_change() -> None:
    found = two_weightings([], ["a", "a"], [2.0, 1.0], [3.0, 3.0], None)
    assert (found.num_prompts, found.num_other_best) == (1, 0)
