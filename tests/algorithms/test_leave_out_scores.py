"""Scores that RLOO leaves one out of, where rewards do not apply to all rows: RLOO's advantages from loops.

A row's advantage is, reward by reward, what it has more than the mean of the other rows of its group where the reward
applies; what clipping takes from the total is one more reward, which applies to every row.
"""

from __future__ import annotations

from typing import Any

import numpy
import pytest
import torch

from rlhf_cli.algorithms.rloo import Rloo, scores_to_leave_out
from rlhf_cli.rewards.stack.reward_matrix import Settled, add_truncation
from rlhf_cli.truncation import Endings, EosPenalty
from tests.support.settled_columns import NAN, Case, Rule, column
from tests.support.tolerances import assert_equal

GROUP = 4
WEIGHTS = [1.0, -0.5, 2.0]


def case(seed: int, *, has_gaps: bool = True) -> Case:
    """Three groups of four; if it `has_gaps`, a third of the scores are missing, and one row has none."""
    random = numpy.random.default_rng(seed)
    matrix = random.normal(size=(12, 3))
    if has_gaps:
        matrix[random.random(matrix.shape) < 0.35] = NAN
        matrix[5] = NAN
    return Case([column(*one) for one in matrix.T], [Rule(name) for name in "abc"], list(WEIGHTS))


def rloo(totals: numpy.ndarray[Any, Any]) -> list[float]:
    """Return each row's total less the mean of the other rows of its group that have one, 0 without a total."""
    found = []
    for row, total in enumerate(totals):
        group = row // GROUP * GROUP
        others = [totals[other] for other in range(group, group + GROUP) if other != row]
        others = [other for other in others if not numpy.isnan(other)]
        found.append(0.0 if numpy.isnan(total) else total - numpy.mean(others) if others else 0.0)
    return found


def by_loops(settled: Settled, clip: tuple[float, float] | None) -> list[float]:
    raw = settled.unfilled.numpy() * numpy.array(WEIGHTS)
    parts = numpy.sum([rloo(one) for one in raw.T], axis=0)
    if clip is not None:
        totals = numpy.where(numpy.isnan(raw).all(axis=1), numpy.nan, numpy.nansum(raw, axis=1))
        parts = parts + rloo(numpy.clip(totals, *clip) - totals)
    return [float(part) for part in parts]


@pytest.mark.parametrize("clip", [None, (-0.5, 1.0), (-9.0, 9.0), (0.25, 0.25)])
@pytest.mark.parametrize("seed", range(4))
def test_its_own_leave_one_out_makes_the_advantages(seed: int, clip: tuple[float, float] | None) -> None:
    for has_gaps in (False, True):
        settled, algorithm = case(seed, has_gaps=has_gaps).settle(), Rloo(clip_range=clip)
        given = algorithm.given(settled, "sum", GROUP)
        totals = algorithm.compared(given)
        assert totals.isnan().tolist() == settled.is_unscorable.tolist()
        assert rloo(totals.numpy()) == pytest.approx(by_loops(settled, clip), abs=1e-9)
    assert given.is_clipped == (clip is not None)
    assert rloo(given.contributions.sum(dim=1).numpy()) == pytest.approx(by_loops(settled, None), abs=1e-9)
    filled, means = (
        scores.reshape(-1, GROUP, 3).nanmean(dim=1)
        for scores in (scores_to_leave_out(settled.unfilled.double(), GROUP), settled.unfilled.double())
    )
    assert_equal(filled.nan_to_num(0.0), means.nan_to_num(0.0))
    # Negative control: the settled rewards themselves, whose gaps are filled with zeros or means, give other numbers.
    assert rloo(settled.totals.numpy()) != pytest.approx(by_loops(settled, None), abs=1e-3)


def test_without_gaps_or_with_an_aggregate_of_its_own_nothing_is_changed() -> None:
    whole = Case([column(1, 2, 3, 4), column(4, 3, 2, 1)], [Rule("a"), Rule("b")], [1.0, 2.0]).settle()
    nothing = Case([column(1, NAN, 3, 4), column(4, NAN, 2, 1)], [Rule("a"), Rule("b")], [1.0, 2.0]).settle()
    gaps = Case([column(1, 2, 3, 4), column(4, NAN, 2, 1)], [Rule("a"), Rule("b")], [1.0, 2.0]).settle()
    for settled, aggregate, each in ((whole, "sum", 4), (nothing, "sum", 4), (gaps, min, 4), (gaps, "sum", 1)):
        given = Rloo(clip_range=(0.0, 1.0)).given(settled, aggregate, each)  # type: ignore[arg-type]
        assert given.matrix is settled.for_trl
    assert Rloo().given(gaps, "sum", 2).matrix is not gaps.for_trl


@pytest.mark.parametrize("replaces", [False, True])
def test_a_penalty_applies_to_every_row_and_replaced_rows_have_nothing_else(replaces: bool) -> None:
    """a = 1, 2, 3, 6, b = -, 10, 1, -; the second and the fourth row are cut off and pay 1.

    Replaced, they have 0 of a and of b, applying or not, and -1.
    """
    cut = torch.tensor([False, True, False, True])
    made = Case([column(1, 2, 3, 6), column(NAN, 10, 1, NAN)], [Rule("a"), Rule("b")], [1.0, 1.0])
    made.is_replaced = cut if replaces else None
    endings = Endings(cut, torch.tensor([3, 4, 3, 4]), 4)
    settled = add_truncation(made.settle(), EosPenalty(1.0, "replace" if replaces else "subtract"), endings)
    a, b = ([1, 0, 3, 0], [NAN, 0, 1, 0]) if replaces else ([1, 2, 3, 6], [NAN, 10, 1, NAN])
    expected = numpy.sum([rloo(numpy.array(one, dtype=float)) for one in (a, b, [0, -1, 0, -1])], axis=0)
    assert rloo(Rloo().given(settled, "sum", GROUP).totals.numpy()) == pytest.approx(expected.tolist(), abs=1e-6)
