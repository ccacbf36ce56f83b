"""Two weightings of the same rows, worked by hand."""

from __future__ import annotations

from datetime import date

import pytest

from rlhf_cli.measure.score_bench import two_weightings

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


def test_all_that_is_held() -> None:
    """Of six rows one has no other total. Ranks 1 2 3 4 5 become 4 5 1 2 3: the first two move most, in their order."""
    totals, others = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [4.0, 5.0, 1.0, 2.0, 3.0, None]
    labels = [True, False, True, None, False, True]
    found = two_weightings(["a=1", "b=2"], list("aabbcc"), totals, others, labels, num_moved=3)
    assert (found.words, found.totals) == (("a=1", "b=2"), tuple(others))
    assert (found.mean, found.other_mean) == (3.0, 3.0)
    assert found.moved == ((0, 3.0), (1, 3.0), (2, -2.0))
    assert len(two_weightings([], list("aabbcc"), totals, others, None).moved) == 5
    # Good 1, 3 and 6, bad 2 and 5: of six pairs 3 > 2, 6 > 2 and 6 > 5. Good 4 and 1, bad 5 and 3: one of four.
    assert (found.roc_auc, found.other_roc_auc) == (3 / 6, 1 / 4)
    assert (found.num_prompts, found.num_other_best) == (2, 0)
    with pytest.raises(ValueError, match="shorter"):
        two_weightings([], PROMPTS, totals[:5], others[:4], None)


def test_nothing_to_compare() -> None:
    found = two_weightings([], ["a", "a"], [1.0, None], [None, 2.0], None)
    assert (found.mean, found.other_mean, found.ranks, found.moved, found.num_prompts) == (None, None, None, (), 0)


def test_no_more_than_five_rows_are_told_unless_asked() -> None:
    turned = two_weightings(
        [], list("abcdefgh"), [float(one) for one in range(8)], [float(-one) for one in range(8)], None
    )
    assert turned.moved == ((0, 7.0), (7, -7.0), (1, 5.0), (6, -5.0), (2, 3.0))


@pytest.mark.parametrize("content", ["q", date(2024, 1, 1)])
def test_the_same_messages_are_the_same_prompt(content: object) -> None:
    prompts = [[{"role": "user", "content": content}], [{"content": content, "role": "user"}]]
    found = two_weightings([], prompts, [2.0, 1.0], [1.0, 2.0], None)
    assert (found.num_prompts, found.num_other_best) == (1, 1)
