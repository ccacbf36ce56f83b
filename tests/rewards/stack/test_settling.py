"""From raw scores to totals: offset, clip, normalise, fill, aggregates, and rows that a policy excludes."""

from __future__ import annotations

import statistics
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor

from rlhf_cli.errors import RewardError
from rlhf_cli.numerics.score_scaling import RunningDeviation, divisors
from rlhf_cli.rewards.stack.reward_matrix import Settled, filled, normalized_in_group
from tests.support.settled_columns import NAN, Case, Rule, column, one
from tests.support.tolerances import distance


def test_offset_then_clip_then_normalise_then_gate_then_weight() -> None:
    """raw 4, 8, 1; minus 3: 1, 5, -2; held in [0, 6]: 1, 5, 0. Mean 2, squares 1 + 9 + 4 = 14, deviation sqrt(7) =
    2.645751. The gate's 10 on the last row is neither divided nor clipped. Weight -2.
    """
    rules: dict[str, Any] = {"offset": 3.0, "clip": (0.0, 6.0), "normalize": "batch"}
    settled = one(4, 8, 1, NAN, **rules, weight=-2.0, fixed=column(NAN, NAN, NAN, 10))
    assert settled.effective[:, 0].tolist() == pytest.approx([0.377964, 1.889822, 0.0, 10.0], abs=1e-6)
    assert settled.contributions[:, 0].tolist() == pytest.approx([-0.755929, -3.779645, 0.0, -20.0], abs=1e-6)


@pytest.mark.parametrize("normalize", ["batch", "group", "running"])
@pytest.mark.parametrize("value", [0.0, 1000.1, -3.3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_constant_is_left_as_it_is(normalize: Any, value: float, dtype: torch.dtype) -> None:
    """The float32 mean of six times 1000.1 is not 1000.1: the rounding must not become the deviation."""
    raw = torch.full((6,), value, dtype=dtype)
    settled = Case([raw], [Rule("one", normalize=normalize)], [1.0], num_generations=6).settle()
    assert settled.effective[:, 0].tolist() == raw.tolist()
    with numpy.errstate(all="raise"):  # nor does a single value vary, nor none at all
        assert one(NAN, value, NAN, NAN, normalize=normalize).unfilled[1, 0] == value
        assert one(NAN, NAN, NAN, NAN, normalize=normalize).unfilled.isnan().all()


@pytest.mark.parametrize(("spread", "is_divided"), [(3e-6, True), (1e-6, False)])
def test_a_column_is_constant_below_a_deviation_of_1e_6(spread: float, is_divided: bool) -> None:
    """0 and s deviate by s / sqrt(2): 2.1e-6 and 0.7e-6."""
    found = divisors(numpy.array([0.0, spread]), "batch", 2, RunningDeviation())
    assert found.tolist() == pytest.approx([spread / 2**0.5 if is_divided else 1.0] * 2)
    at_the_limit = RunningDeviation(count=2.0, sum_of_squares=1e-12)
    assert at_the_limit.deviation == 1e-6
    assert divisors(numpy.array([0.0]), "running", None, at_the_limit).tolist() == [1.0]


@pytest.mark.parametrize("sizes", [[40], [8] * 5, [1] * 40, [3, 36, 1], [0, 40]], ids=str)
def test_the_running_deviation_is_that_of_all_rows_in_any_split(sizes: list[int]) -> None:
    rows = numpy.random.default_rng(1).normal(100.0, 0.5, 40)
    rows[[4, 17]] = NAN
    state, begin = RunningDeviation(), 0
    for size in sizes:
        state = state.updated(rows[begin : begin + size])
        begin += size
        assert state.deviation == (0.0 if begin < 2 else pytest.approx(numpy.nanstd(rows[:begin], ddof=1), rel=1e-9))
    assert state.mean == pytest.approx(numpy.nanmean(rows), rel=1e-12)
    assert state.count == 38


def test_only_training_adds_to_the_running_deviation_what_is_not_closed_after_offset_and_clip() -> None:
    rule = Rule("one", offset=1.0, clip=(-2.0, 9.0), normalize="running")
    case = Case([column(2, 6, 99, NAN)], [rule], [1.0], fixed=[column(NAN, NAN, NAN, 5.0)])
    first = numpy.std([1.0, 5.0, 9.0], ddof=1)
    assert case.settle().divisors[:, 0].tolist() == pytest.approx([first] * 4)
    before, case.raw, case.is_training = case.running["one"], [column(11, -9, 3, NAN)], False
    evaluated = case.settle()
    assert evaluated.divisors[:, 0].tolist() == pytest.approx([first] * 4)
    assert evaluated.unfilled[0, 0].item() == pytest.approx(9.0 / first)
    assert case.running["one"] == before
    case.is_training = True
    both = numpy.std([1.0, 5.0, 9.0, 9.0, -2.0, 2.0], ddof=1)
    assert case.settle().divisors[:, 0].tolist() == pytest.approx([both] * 4)
    assert case.running["one"].count == 6


@pytest.mark.parametrize("fill", ["group", "zero"])
@pytest.mark.parametrize("seed", range(4))
def test_what_is_filled_in_entry_by_entry(seed: int, fill: Any) -> None:
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


def test_an_all_nan_row_stays_nan_for_every_aggregate() -> None:
    raw = [column(1, NAN, 3, 5), column(2, NAN, NAN, 1)]
    for aggregate in ("sum", "normalize_then_sum", lambda rewards, weights: [1.0, 2.0, 3.0]):
        settled = Case(raw, [Rule("a"), Rule("b")], [1.0, 1.0], aggregate=aggregate).settle()
        assert settled.for_trl.isnan().all(dim=1).tolist() == [False, True, False, False]
        assert settled.is_unscorable.tolist() == [False, True, False, False]


class TestCustomAggregate:
    raw = (column(1, 2, 3, 4), column(10, NAN, NAN, NAN))

    def settled(self, function: Any) -> Settled:
        """b's gate is closed with 0 in the second row, and with -1 in the third; it does not apply to the last."""
        fixed = [column(*[NAN] * 4), column(NAN, 0.0, -1.0, NAN)]
        return Case([*self.raw], [Rule("a"), Rule("b")], [0.5, -2.0], fixed, aggregate=function).settle()

    def test_is_given_effective_values_and_weights_by_name_and_may_exclude_a_row(self) -> None:
        seen: list[Any] = []

        def aggregate(rewards: Any, weights: Any) -> list[float | None]:
            seen.append((rewards, weights))
            return [7.0, 8.0, None, 10.0]

        settled = self.settled(aggregate)
        # TRL sums b filled; the aggregate gets None. A closed gate's number and a failure's are scores.
        assert seen == [({"a": [1, 2, 3, 4], "b": [10, 0, -1, None]}, {"a": 0.5, "b": -2.0})]
        assert settled.totals.tolist() == pytest.approx([7.0, 8.0, NAN, 10.0], nan_ok=True)
        assert settled.for_trl.isnan().all(dim=1).tolist() == [False, False, True, False]
        assert settled.weights.tolist() == [0.5, -2.0]  # as they are logged

    @pytest.mark.parametrize(
        ("totals", "got"), [([1.0, 2.0, 3.0], "3 totals for 4 rows"), ([1e39, 2.0, 3.0, 4.0], "1e+39")]
    )
    def test_a_wrong_number_of_totals_or_one_beyond_float32_is_refused(self, totals: list[float], got: str) -> None:
        """Finite in Python, a total of 1e39 would be an infinity in the matrix that TRL sums."""
        with pytest.raises(RewardError) as caught:
            self.settled(lambda rewards, weights: totals)
        assert (caught.value.where, caught.value.got) == ("aggregate", got)
        largest = torch.finfo(torch.float32).max
        assert self.settled(lambda rewards, weights: [largest, -largest, 3, 4]).totals[:2].tolist() == [
            largest,
            -largest,
        ]


def trl_normalize_then_sum(rewards_per_func: Tensor, weights: Tensor, num_generations: int) -> Tensor:
    """grpo_trainer.py of TRL 1.16, lines 2790 to 2799, its nanstd written with numpy: the advantages."""
    grouped = rewards_per_func.numpy().reshape(-1, num_generations, rewards_per_func.shape[1])
    mean_k = numpy.nanmean(grouped, axis=1, keepdims=True)
    std_k = numpy.nanstd(grouped, axis=1, keepdims=True, ddof=1)
    reward_k = ((grouped - mean_k) / (std_k + 1e-4)).reshape(rewards_per_func.shape)
    rewards = numpy.nansum(reward_k * weights.numpy(), axis=1)
    rewards[numpy.isnan(rewards_per_func.numpy()).all(axis=1)] = NAN
    std_rewards = numpy.nanstd(rewards, ddof=1)
    advantages = (rewards - numpy.nanmean(rewards)) / (std_rewards + 1e-4)
    return torch.from_numpy(numpy.nan_to_num(advantages, nan=0.0))


def trl_grpo_batch(settled: Settled, num_generations: int) -> Tensor:
    """Lines 2761 to 2788 with scale_rewards=batch, as `assemble` sets it for this aggregate."""
    rewards = (settled.for_trl * settled.trl_weights).nansum(dim=1).numpy()
    rewards[settled.for_trl.isnan().all(dim=1).numpy()] = NAN
    mean = numpy.nanmean(rewards.reshape(-1, num_generations), axis=1).repeat(num_generations)
    advantages = (rewards - mean) / (numpy.nanstd(rewards, ddof=1) + 1e-4)
    return torch.from_numpy(numpy.nan_to_num(advantages, nan=0.0))


class TestNormalizeThenSum:
    weights = (1.0, -0.5, 0.25)

    def settled(self, matrix: Tensor, aggregate: Any = "normalize_then_sum") -> Settled:
        rules = [Rule(name) for name in "abc"]
        return Case(list(matrix.unbind(dim=1)), rules, list(self.weights), aggregate=aggregate).settle()

    @pytest.mark.parametrize("seed", range(5))
    def test_equals_trls_own(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        matrix = torch.randn(12, 3, generator=generator, dtype=torch.float64) * torch.tensor([1.0, 50.0, 0.01])
        expected = trl_normalize_then_sum(matrix, torch.tensor(self.weights, dtype=torch.float64), 4)
        found = trl_grpo_batch(self.settled(matrix), 4)
        assert found.tolist() == pytest.approx(expected.tolist(), abs=1e-9)
        summed = trl_grpo_batch(self.settled(matrix, "sum"), 4)
        assert distance(summed, expected) > 0.1  # negative control: the plain sum

    def test_the_deviation_is_that_of_the_rows_where_it_applies(self) -> None:
        """b = 1, 3 and excluded twice: mean 2, deviation sqrt(2); the excluded rows are 0, at the mean. a does not
        vary, which eps keeps from a division by 0, and the only value of c is its own mean.
        """
        matrix = torch.stack([column(2, 2, 2, 2), column(1, NAN, 3, NAN), column(NAN, 5, NAN, NAN)], dim=1)
        settled = self.settled(matrix)
        z = 1 / (2**0.5 + 1e-4)
        assert settled.for_trl[:, 1].tolist() == pytest.approx([-z, 0.0, z, 0.0])
        assert settled.for_trl[[1, 3], 1].tolist() == [0.0, 0.0]
        assert settled.for_trl[:, [0, 2]].tolist() == [[0.0, 0.0]] * 4
        # negative control: filled with the mean first, the deviation would be sqrt(2/3)
        control = normalized_in_group(filled(matrix, 4), 4)
        assert control[2, 1] == pytest.approx(1 / ((2 / 3) ** 0.5 + 1e-4))


class TestReplaced:
    """A replaced row counts as 0 in every fill, so its score does not matter there."""

    def settled(self, a: Tensor, b: Tensor, *is_replaced: bool) -> Settled:
        case = Case([a, b], [Rule("a"), Rule("b")], [1.0, 1.0])
        case.is_replaced = torch.tensor(is_replaced) if is_replaced else None
        return case.settle()

    @pytest.mark.parametrize(
        ("is_replaced", "fill"),
        [
            ((), 19.0),  # the mean of 8 and 30
            ((True, False, False, False), 15.0),  # of 0 and 30
            ((False, True, False, False), 38 / 3),  # of 8, 0 and 30: the row itself counts as 0
            ((False, False, True, True), 8 / 3),  # of 8, 0 and 0
        ],
    )
    def test_the_fill(self, is_replaced: tuple[bool, ...], fill: float) -> None:
        settled = self.settled(column(1, 2, 3, 4), column(8, NAN, 30, NAN), *is_replaced)
        own = [row for row in (1, 3) if not (is_replaced and is_replaced[row])]
        assert settled.effective[own, 1].tolist() == pytest.approx([fill] * len(own))
        # What was scored stays as it is: it is logged, and the policy takes it away.
        assert settled.effective[:, 0].tolist() == [1.0, 2.0, 3.0, 4.0]
        assert settled.effective[[0, 2], 1].tolist() == [8.0, 30.0]

    def test_a_row_without_any_reward_is_unscorable(self) -> None:
        settled = self.settled(column(NAN, 2, 3, 4), column(NAN, NAN, 30, 8), True, False, False, False)
        assert settled.is_unscorable.tolist() == [True, False, False, False]
        assert settled.effective[1, 1] == 19.0  # of 30 and 8; with a 0 more it would be 38 / 3


LEFT_OUT = torch.tensor([False, True, False, False, False, True, False, False])
RAW = (1.0, 900.0, 4.0, 3.0, 10.0, -900.0, 30.0, 80.0)
"""Two groups of four; the second row of each is left out, and would be seen in any mean it were in."""


def with_left_out(left_out: Tensor | None, raw: Any = RAW, fixed: Tensor | None = None, **rules: Any) -> Settled:
    """A reward with rules beside one that is 1 everywhere."""
    nothing = column(*[NAN] * 8)
    both = [column(*raw), torch.ones(8, dtype=torch.float64)]
    case = Case(both, [Rule("one", **rules), Rule("other")], [1.0, 1.0], [nothing if fixed is None else fixed, nothing])
    case.is_left_out = left_out
    return case.settle()


class TestLeftOut:
    @pytest.mark.parametrize("number", [0.0, -5.0])
    def test_they_have_no_score_and_show_what_they_had(self, number: float) -> None:
        """The gates of rows 1 and 2 are closed: row 1 is left out all the same, and row 2 is not."""
        fixed = column(NAN, number, number, *[NAN] * 5)
        found = with_left_out(LEFT_OUT, fixed=fixed)
        assert found.is_unscorable.tolist() == found.totals.isnan().tolist() == LEFT_OUT.tolist()
        assert found.unfilled[1].isnan().all()
        assert found.raw[:, 0].tolist() == list(RAW)
        assert found.totals[2] == number + 1.0
        back = with_left_out(None, fixed=fixed).totals  # negative control
        assert not back.isnan().any()
        assert back[1] == number + 1.0

    @pytest.mark.parametrize(
        ("normalize", "seen"),
        [
            ("group", {(0, 2, 3): (1.0, 4.0, 3.0), (4, 6, 7): (10.0, 30.0, 80.0)}),
            ("batch", {(0, 2, 3, 4, 6, 7): (1.0, 4.0, 3.0, 10.0, 30.0, 80.0)}),
            ("running", {(0, 2, 3, 4, 6, 7): (1.0, 4.0, 3.0, 10.0, 30.0, 80.0)}),
        ],
    )
    def test_they_are_in_no_deviation(self, normalize: str, seen: dict[tuple[int, ...], tuple[float, ...]]) -> None:
        """statistics.stdev, with n - 1, of the other rows; with the 900s it would be in the hundreds."""
        found = with_left_out(LEFT_OUT, normalize=normalize)
        for rows, scores in seen.items():
            expected = [score / statistics.stdev(scores) + 1.0 for score in scores]
            assert found.totals[[*rows]].tolist() == pytest.approx(expected, rel=1e-12)
        assert with_left_out(None, normalize=normalize).divisors[0, 0] > 100  # negative control

    def test_they_are_in_no_fill(self) -> None:
        """In the first group the reward applies to 1 and 3 beside the row that is left out: 2 fills the gap."""
        raw = (1.0, 900.0, NAN, 3.0, *RAW[4:])
        assert with_left_out(LEFT_OUT, raw).effective[2, 0] == 2.0
        negative_control = with_left_out(None, raw).effective[2, 0]
        assert negative_control == pytest.approx((1 + 900 + 3) / 3)
