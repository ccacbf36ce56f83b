"""Correlations of columns with gaps and ties, held against scipy.stats."""

from __future__ import annotations

from random import Random

import pytest
from scipy import stats

from rlhf_cli.measure.score_bench import as_array, correlations, mean_ranks


def test_ranks_of_ties_by_hand() -> None:
    """10 is the 1st; both 20 share (2 + 3) / 2; 30 is the 4th."""
    assert mean_ranks(as_array([20.0, 10.0, 30.0, 20.0])).tolist() == [2.5, 1.0, 4.0, 2.5]


@pytest.mark.parametrize("seed", range(5))
def test_as_scipy_has_it(seed: int) -> None:
    random = Random(seed)
    a: list[float | None] = [random.choice([0.0, 0.5, 1.0, None]) for _ in range(40)]
    b: list[float | None] = [random.gauss(x or 0.0, 1.0) if random.random() > 0.2 else None for x in a]
    (found,) = correlations({"a": a, "b": b})
    both = [(x, y) for x, y in zip(a, b, strict=True) if x is not None and y is not None]
    first, second = zip(*both, strict=True)
    assert found.count == len(both)
    assert found.ranks == pytest.approx(stats.spearmanr(first, second).statistic, abs=1e-12)
    assert found.linear == pytest.approx(stats.pearsonr(first, second).statistic, abs=1e-12)


def test_of_a_constant_there_is_none() -> None:
    found = correlations({"a": [1.0, 1.0, 1.0], "b": [1.0, 2.0, 3.0], "c": [3.0, 2.0, None]})
    assert [(one.first, one.second, one.ranks, one.linear) for one in found] == [
        ("a", "b", None, None),
        ("a", "c", None, None),
        ("b", "c", pytest.approx(-1.0), pytest.approx(-1.0)),
    ]
