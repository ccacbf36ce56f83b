"""From raw scores to what enters the total: offset, clip, normalise, fill, and the punishment of long answers."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
import torch

from rlhf_cli.numerics.score_scaling import RunningDeviation, divisors
from rlhf_cli.rewards.stack.reward_matrix import filled, normalized_in_group
from rlhf_cli.truncation import Endings, SoftOverlong
from tests.support.settled_columns import NAN, Case, Rule, column, one
from tests.support.tolerances import assert_close

# A column of raw scores, clipped, divided and weighed: against numpy and against numbers worked out by hand.


class TestOrder:
    def test_offset_then_clip_then_normalise_then_gate_then_weight(self) -> None:
        """raw 4, 8, 1, 20; minus 3: 1, 5, -2, 17; held in [0, 6]: 1, 5, 0, 6. Mean 3, squares 4 + 4 + 9 + 9 = 26,
        deviation sqrt(26 / 3) = 2.94392. The gate's 10 on row 3 is neither divided nor clipped. Weight -2.
        """
        settled = one(4, 8, 1, 20, offset=3.0, clip=(0.0, 6.0), normalize="batch", weight=-2.0)
        assert settled.effective[:, 0].tolist() == pytest.approx([0.339683, 1.698416, 0.0, 2.038099], abs=1e-6)
        closed = one(
            4, 8, 1, NAN, offset=3.0, clip=(0.0, 6.0), normalize="batch", weight=-2.0, fixed=column(NAN, NAN, NAN, 10)
        )
        # of 1, 5, 0 alone: mean 2, squares 1 + 9 + 4 = 14, deviation sqrt(7) = 2.645751
        assert closed.effective[:, 0].tolist() == pytest.approx([0.377964, 1.889822, 0.0, 10.0], abs=1e-6)
        assert closed.contributions[:, 0].tolist() == pytest.approx([-0.755929, -3.779645, 0.0, -20.0], abs=1e-6)


class TestNormalise:
    rows = numpy.random.default_rng(0).normal(3.0, 2.0, 12)

    def test_group(self) -> None:
        found = divisors(column(*self.rows).numpy(), "group", 4, RunningDeviation())
        expected = numpy.std(self.rows.reshape(3, 4), axis=1, ddof=1).repeat(4)
        assert found.tolist() == pytest.approx(expected.tolist())
        assert len(set(found.tolist())) == 3  # negative control: not the batch's

    def test_nan_is_left_out(self) -> None:
        values = self.rows.copy()
        values[[1, 2, 7]] = NAN
        found = divisors(column(*values).numpy(), "group", 4, RunningDeviation())
        expected = numpy.nanstd(values.reshape(3, 4), axis=1, ddof=1).repeat(4)
        assert found.tolist() == pytest.approx(expected.tolist())
        batch = divisors(column(*values).numpy(), "batch", 4, RunningDeviation())
        assert batch.tolist() == pytest.approx([numpy.nanstd(values, ddof=1)] * 12)

    @pytest.mark.parametrize("normalize", ["batch", "group", "running"])
    def test_divides_and_never_centres(self, normalize: Any) -> None:
        """0 stays 0 and the sign stays: a nulled row does not beat a poor one."""
        effective = one(5, 6, 0, 7, normalize=normalize).effective[:, 0]
        deviation = numpy.std([5, 6, 0, 7], ddof=1)
        assert effective.tolist() == pytest.approx([5 / deviation, 6 / deviation, 0.0, 7 / deviation])

    @pytest.mark.parametrize("normalize", ["batch", "group", "running"])
    @pytest.mark.parametrize("value", [0.0, 0.1, 1000.1, 123456.7, -3.3])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_a_constant_is_left_as_it_is(self, normalize: Any, value: float, dtype: torch.dtype) -> None:
        """The float32 mean of six times 1000.1 is not 1000.1: the rounding must not become the deviation."""
        raw = torch.full((6,), value, dtype=dtype)
        settled = Case([raw], [Rule("one", normalize=normalize)], [1.0], num_generations=6).settle()
        assert settled.effective[:, 0].tolist() == raw.tolist()

    @pytest.mark.parametrize("normalize", ["batch", "group", "running"])
    def test_a_single_value_and_none_at_all_are_left_as_they_are(self, normalize: Any) -> None:
        with numpy.errstate(all="raise"):
            assert one(NAN, 7, NAN, NAN, normalize=normalize).unfilled[1, 0] == 7.0
            assert one(NAN, NAN, NAN, NAN, normalize=normalize).unfilled.isnan().all()

    def test_negative_control_a_small_spread_is_none_the_less_one(self) -> None:
        assert one(1.0, 1.001, 1.0, 1.001, normalize="batch").effective[0, 0] > 100

    @pytest.mark.parametrize(("spread", "is_divided"), [(3e-6, True), (1e-6, False)])
    def test_a_column_is_constant_below_a_deviation_of_1e_6(self, spread: float, is_divided: bool) -> None:
        """0 and s deviate by s / sqrt(2): 2.1e-6 and 0.7e-6."""
        found = divisors(numpy.array([0.0, spread]), "batch", 2, RunningDeviation())
        assert found.tolist() == pytest.approx([spread / 2**0.5 if is_divided else 1.0] * 2)
        at_the_limit = RunningDeviation(count=2.0, sum_of_squares=1e-12)
        assert at_the_limit.deviation == 1e-6
        assert divisors(numpy.array([0.0]), "running", None, at_the_limit).tolist() == [1.0]


class TestInGroup:
    def test_each_component_is_z_scored_in_its_group(self) -> None:
        """1 and 3 around 2 deviate by sqrt(2); 10 and 10 by nothing, which eps keeps from a division by 0; of 5 and
        nothing there is no deviation, and 5 is its own mean.
        """
        effective = torch.tensor([[1.0, 10.0], [3.0, 10.0], [5.0, -1.0], [NAN, 1.0]], dtype=torch.float64)
        found = normalized_in_group(effective, 2)
        one = 1 / (2**0.5 + 1e-4)
        expected = [[-one, 0.0], [one, 0.0], [0.0, -one], [NAN, one]]
        assert found.tolist() == [pytest.approx(row, rel=1e-12, nan_ok=True) for row in expected]


class TestRunning:
    @pytest.mark.parametrize("sizes", [[40], [8] * 5, [1] * 40, [3, 36, 1], [0, 40]], ids=str)
    def test_is_the_deviation_of_all_rows_in_any_split(self, sizes: list[int]) -> None:
        rows = numpy.random.default_rng(1).normal(100.0, 0.5, 40)
        rows[[4, 17]] = NAN
        state, begin = RunningDeviation(), 0
        for size in sizes:
            state = state.updated(rows[begin : begin + size])
            begin += size
        assert state.deviation == pytest.approx(numpy.nanstd(rows, ddof=1), rel=1e-9)
        assert state.mean == pytest.approx(numpy.nanmean(rows), rel=1e-12)
        assert state.count == 38

    def test_of_one_score_it_is_0_and_of_two_that_of_both(self) -> None:
        state = RunningDeviation().updated(numpy.array([3.0]))
        assert (RunningDeviation().deviation, state.deviation) == (0.0, 0.0)
        assert state.updated(numpy.array([5.0])).deviation == pytest.approx(2**0.5)

    def test_what_is_seen_is_after_offset_and_clip_and_without_closed_rows(self) -> None:
        rule = Rule("one", offset=1.0, clip=(-2.0, 2.0), normalize="running")
        case = Case([column(1, 2, 99, NAN)], [rule], [1.0], fixed=[column(NAN, NAN, NAN, 5.0)])
        case.settle()
        assert case.running["one"].count == 3
        assert case.running["one"].deviation == pytest.approx(1.0)  # of 0, 1, 2


class TestFilled:
    def test_negative_control_nothing_missing_nothing_filled(self) -> None:
        matrix = torch.randn(6, 3)
        assert torch.equal(filled(matrix, 3), matrix)

    @pytest.mark.parametrize("fill", ["group", "zero"])
    @pytest.mark.parametrize("seed", range(4))
    def test_entry_by_entry(self, seed: int, fill: Any) -> None:
        """Five groups of three with a third of the entries gone, some rows and some rewards of a group whole."""
        random = numpy.random.default_rng(seed)
        matrix = random.normal(size=(15, 4))
        matrix[random.random(matrix.shape) < 0.4] = NAN
        matrix[[0, 7]] = NAN
        matrix[3:6, 2] = NAN
        found = filled(torch.from_numpy(matrix.copy()), 3, fill).numpy()
        for row, column_index in numpy.ndindex(*matrix.shape):
            group = matrix[row // 3 * 3 : row // 3 * 3 + 3, column_index]
            known = group[~numpy.isnan(group)]
            expected = matrix[row, column_index]
            if numpy.isnan(expected) and not numpy.isnan(matrix[row]).all():
                expected = known.mean() if fill == "group" and len(known) else 0.0
            assert found[row, column_index] == pytest.approx(expected, nan_ok=True)


# DAPO's soft overlong punishment, by its equation's three branches.


def equation_13(length: int, longest: int, cache: int) -> float:
    if length <= longest - cache:
        return 0.0
    return ((longest - cache) - length) / cache if length <= longest else -1.0


@pytest.mark.parametrize(("longest", "cache"), [(12, 1), (12, 5), (12, 12)])
def test_every_length(longest: int, cache: int) -> None:
    lengths = torch.arange(0, 2 * longest)

    def found(limit: int) -> torch.Tensor:
        endings = Endings(torch.zeros(len(lengths), dtype=torch.bool), lengths, limit)
        return SoftOverlong(1.0, cache=cache).added(lengths.float(), endings)

    assert_close(found(longest), torch.tensor([equation_13(length, longest, cache) for length in lengths.tolist()]))
    assert not torch.equal(found(longest + 1), found(longest))  # control: the numbers tell where it begins
