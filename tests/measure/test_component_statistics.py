"""How the scores of a component lie: by hand, and as pandas has it."""

from __future__ import annotations

import math
from random import Random

import pandas
import pytest

from rlhf_cli.measure.score_bench import NUM_BINS, QUANTILES, distribution


def test_by_hand() -> None:
    """1, 2, 3, 6: mean 3, squares 4 + 1 + 0 + 9, deviation sqrt(14 / 3); the median halfway between 2 and 3.

    Sixteen bins of 5/16: 1 is in the first, 2 (16/5 = 3.2 bins on) in the fourth, 3 in the seventh, 6 in the last.
    """
    found = distribution([1.0, None, 2.0, 6.0, 3.0])
    assert (found.count, found.mean, found.distinct) == (4, 3.0, 4)
    assert found.deviation == pytest.approx((14 / 3) ** 0.5)
    assert (found.quantiles[0], found.quantiles[3], found.quantiles[-1]) == (1.0, 2.5, 6.0)
    assert [place for place, count in enumerate(found.bins) if count] == [0, 3, 6, 15]
    assert sum(found.bins) == 4


def test_as_pandas_has_it() -> None:
    random = Random(1)
    values = [random.choice([0.0, 1.0, random.gauss(0, 3)]) for _ in range(200)]
    series = pandas.Series(values)
    found = distribution(values)
    assert found.quantiles == pytest.approx(series.quantile(list(QUANTILES)).tolist(), abs=1e-12)
    assert (found.mean, found.deviation) == pytest.approx((series.mean(), series.std()), rel=1e-12)
    assert found.distinct == series.nunique()
    # pandas closes a bin at its right end, so what lies on an edge is the other bin's; here only both ends do.
    bins = pandas.cut(series, NUM_BINS, labels=False).value_counts()
    assert found.bins == tuple(bins.get(place, 0) for place in range(16))


def test_nothing_one_value_and_equal_values() -> None:
    assert (distribution([None]).count, distribution([None]).mean, distribution([]).quantiles) == (0, None, ())
    assert (distribution([2.0]).deviation, distribution([2.0]).bins) == (None, (1,))
    assert (distribution([2.0] * 3).deviation, distribution([2.0] * 3).bins) == (0.0, (3,))


@pytest.mark.parametrize("values", [[0.3, 0.1 + 0.2, 0.3], [1.0, math.nextafter(1.0, 2.0)]])
def test_values_that_differ_by_rounding_are_one_bin(values: list[float]) -> None:
    """No number lies between 0.3 and the sum of 0.1 and 0.2 (IEEE 754), so nothing could divide them into bins."""
    assert len(set(values)) == 2
    assert distribution(values).bins == (len(values),)


@pytest.mark.parametrize(("steps", "bins"), [(16, 16), (15, 1), (17, 16)])
def test_sixteen_bins_take_sixteen_steps_between_numbers(steps: int, bins: int) -> None:
    """From 1 on numbers are 2^-52 apart: sixteen bins have seventeen different edges, and that is sixteen steps."""
    found = distribution([1.0, 1.0 + steps * 2.0**-52]).bins
    assert (len(found), sum(found)) == (bins, 2)


def test_quantiles_have_their_share_as_key_in_json() -> None:
    quantiles = distribution([0.0, 1.0]).as_json()["quantiles"]
    assert isinstance(quantiles, dict)
    assert list(quantiles) == ["0", "0.05", "0.25", "0.5", "0.75", "0.95", "1"]
    assert quantiles["0.25"] == 0.25
    assert distribution([None]).as_json() == {
        **{"count": 0, "mean": None, "deviation": None, "quantiles": {}, "bins": (), "distinct": 0}
    }
