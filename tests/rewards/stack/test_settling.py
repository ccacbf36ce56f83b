"""What a row's settled rewards make together: custom aggregates, TRL's sums, and rows that a policy excludes."""

from __future__ import annotations

import statistics
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor

from rlhf_cli.errors import RewardError
from rlhf_cli.rewards.stack.reward_matrix import Settled, filled, normalized_in_group
from tests.support.settled_columns import NAN, Case, Rule, column
from tests.support.tolerances import distance


class TestSettledRows:
    def test_an_all_nan_row_stays_nan_for_every_aggregate(self) -> None:
        raw = [column(1, NAN, 3, 5), column(2, NAN, NAN, 1)]
        for aggregate in ("sum", "normalize_then_sum", lambda rewards, weights: [1.0, 2.0, 3.0]):
            settled = Case(raw, [Rule("a"), Rule("b")], [1.0, 1.0], aggregate=aggregate).settle()
            assert settled.for_trl.isnan().all(dim=1).tolist() == [False, True, False, False]
            assert settled.is_unscorable.tolist() == [False, True, False, False]


class TestCustomAggregate:
    raw = (column(1, 2, 3, 4), column(10, NAN, 30, 50))
    rules = (Rule("a"), Rule("b"))

    def settled(self, function: Any, raw: tuple[Tensor, ...] | None = None) -> Settled:
        return Case(list(raw or self.raw), list(self.rules), [0.5, -2.0], aggregate=function).settle()

    def test_is_given_effective_values_and_weights_by_name(self) -> None:
        seen: list[Any] = []

        def aggregate(rewards: Any, weights: Any) -> list[float]:
            seen.append((rewards, weights))
            return [7.0, 8.0, 9.0, 10.0]

        settled = self.settled(aggregate)
        # TRL sums b filled with 30; the aggregate gets None.
        assert seen == [({"a": [1, 2, 3, 4], "b": [10, None, 30, 50]}, {"a": 0.5, "b": -2.0})]
        assert (settled.for_trl * settled.trl_weights).nansum(dim=1).tolist() == [7.0, 8.0, 9.0, 10.0]
        assert settled.weights.tolist() == [0.5, -2.0]  # as they are logged

    def test_a_fixed_value_differs_from_an_excluded_one(self) -> None:
        """A gate that is closed with 0 and a failure's -1 are scores; exclude, None and a failure left out are none."""
        seen: list[Any] = []

        def aggregate(rewards: Any, weights: Any) -> list[float]:
            seen.append(rewards["b"])
            return [0.0] * 4

        raw = [column(1, 1, 1, 1), column(NAN, NAN, NAN, 0.0)]
        fixed = [column(*[NAN] * 4), column(0.0, -1.0, NAN, NAN)]
        Case(raw, list(self.rules), [1.0, 1.0], fixed, aggregate=aggregate).settle()
        assert seen == [[0.0, -1.0, None, 0.0]]

    def test_a_total_of_none_excludes_a_row_with_scores(self) -> None:
        settled = self.settled(lambda rewards, weights: [1.0, 2.0, None, 4.0])
        assert settled.for_trl.isnan().all(dim=1).tolist() == [False, False, True, False]

    def test_a_wrong_number_of_totals_is_refused(self) -> None:
        with pytest.raises(RewardError) as caught:
            self.settled(lambda rewards, weights: [1.0, 2.0, 3.0])
        assert (caught.value.where, caught.value.got) == ("aggregate", "3 totals for 4 rows")

    def test_a_total_beyond_float32_is_refused(self) -> None:
        """Finite in Python, it would be an infinity in the matrix that TRL sums."""
        largest = torch.finfo(torch.float32).max
        kept = self.settled(lambda rewards, weights: [largest, -largest, 3.0, 4.0])
        assert (kept.for_trl * kept.trl_weights).nansum(dim=1).tolist() == [largest, -largest, 3.0, 4.0]
        with pytest.raises(RewardError) as caught:
            self.settled(lambda rewards, weights: [1e39, 2.0, 3.0, 4.0])
        assert (caught.value.where, caught.value.got) == ("aggregate", "1e+39")


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
    rules = (Rule("a"), Rule("b"), Rule("c"))
    weights = (1.0, -0.5, 0.25)

    def settled(self, matrix: Tensor, num_generations: int = 4) -> Settled:
        case = Case(list(matrix.unbind(dim=1)), list(self.rules), list(self.weights), num_generations=num_generations)
        case.aggregate = "normalize_then_sum"
        return case.settle()

    @pytest.mark.parametrize("seed", range(5))
    def test_equals_trls_own(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        matrix = torch.randn(12, 3, generator=generator, dtype=torch.float64) * torch.tensor([1.0, 50.0, 0.01])
        expected = trl_normalize_then_sum(matrix, torch.tensor(self.weights, dtype=torch.float64), 4)
        found = trl_grpo_batch(self.settled(matrix), 4)
        assert found.tolist() == pytest.approx(expected.tolist(), abs=1e-9)
        summed = trl_grpo_batch(Case(list(matrix.unbind(1)), list(self.rules), list(self.weights)).settle(), 4)
        assert distance(summed, expected) > 0.1  # negative control: the plain sum

    def test_the_deviation_is_that_of_the_rows_where_it_applies(self) -> None:
        """b = 1, 3 and excluded twice: mean 2, deviation sqrt(2); the excluded rows are 0, at the mean."""
        matrix = torch.stack([column(1, 2, 3, 4), column(1, NAN, 3, NAN), column(0, 0, 0, 0)], dim=1)
        settled = self.settled(matrix)
        z = 1 / (2**0.5 + 1e-4)
        assert settled.for_trl[:, 1].tolist() == pytest.approx([-z, 0.0, z, 0.0])
        assert settled.for_trl[[1, 3], 1].tolist() == [0.0, 0.0]
        assert settled.for_trl[:, 2].tolist() == [0.0] * 4
        # negative control: filled with the mean first, the deviation would be sqrt(2/3)
        control = normalized_in_group(filled(matrix, 4), 4)
        assert control[2, 1] == pytest.approx(1 / ((2 / 3) ** 0.5 + 1e-4))


class TestReplaced:
    """A replaced row counts as 0 in every fill, so its score does not matter there."""

    a = column(1, 2, 3, 4)
    b = column(8, NAN, 30, NAN)

    def settled(self, *is_replaced: bool, aggregate: Any = "sum") -> Settled:
        case = Case([self.a, self.b], [Rule("a"), Rule("b")], [1.0, 1.0], aggregate=aggregate)
        case.is_replaced = torch.tensor(is_replaced) if is_replaced else None
        return case.settle()

    @pytest.mark.parametrize(
        ("is_replaced", "fill"),
        [
            ((), 19.0),  # the mean of 8 and 30
            ((False,) * 4, 19.0),
            ((True, False, False, False), 15.0),  # of 0 and 30
            ((False, True, False, False), 38 / 3),  # of 8, 0 and 30: the row itself counts as 0
            ((False, False, True, True), 8 / 3),  # of 8, 0 and 0
        ],
    )
    def test_the_fill(self, is_replaced: tuple[bool, ...], fill: float) -> None:
        settled = self.settled(*is_replaced)
        own = [row for row in (1, 3) if not (is_replaced and is_replaced[row])]
        assert settled.effective[own, 1].tolist() == pytest.approx([fill] * len(own))
        # What was scored stays as it is: it is logged, and the policy takes it away.
        assert settled.effective[:, 0].tolist() == self.a.tolist()
        assert settled.effective[[0, 2], 1].tolist() == [8.0, 30.0]

    def test_a_row_without_any_reward_is_unscorable(self) -> None:
        nothing = Case([column(NAN, 2, 3, 4), column(NAN, NAN, 30, 8)], [Rule("a"), Rule("b")], [1.0, 1.0])
        nothing.is_replaced = torch.tensor([True, False, False, False])
        settled = nothing.settle()
        assert settled.is_unscorable.tolist() == [True, False, False, False]
        assert settled.effective[1, 1] == 19.0  # of 30 and 8; with a 0 more it would be 38 / 3


class TestRunningDeviation:
    """Deviations by numpy over all that training has shown, each batch with itself in it."""

    first, second = (1.0, 5.0, NAN, 3.0), (10.0, -4.0, 2.0, NAN)

    def test_only_training_adds_to_it(self) -> None:
        case = Case([column(*self.first)], [Rule("one", normalize="running")], [1.0])
        seen = [1.0, 5.0, 3.0]
        assert case.settle().divisors[:, 0].tolist() == pytest.approx([numpy.std(seen, ddof=1)] * 4)
        case.raw, case.is_training = [column(*self.second)], False
        before = case.running["one"]
        evaluated = case.settle()
        assert evaluated.divisors[:, 0].tolist() == pytest.approx([numpy.std(seen, ddof=1)] * 4)
        assert evaluated.unfilled[0, 0].item() == pytest.approx(10.0 / numpy.std(seen, ddof=1))
        assert case.running["one"] == before
        case.is_training = True
        seen += [10.0, -4.0, 2.0]
        assert case.settle().divisors[:, 0].tolist() == pytest.approx([numpy.std(seen, ddof=1)] * 4)
        assert case.running["one"].count == 6


LEFT_OUT = torch.tensor([False, True, False, False, False, True, False, False])
RAW = (1.0, 900.0, 4.0, 3.0, 10.0, -900.0, 30.0, 80.0)
"""Two groups of four; the second row of each is left out, and would be seen in any mean it were in."""


def settled(*, fixed: Tensor | None = None, left_out: Tensor | None = LEFT_OUT, **rules: Any) -> tuple[Settled, Case]:
    """A reward with rules beside one that is 1 everywhere."""
    nothing = column(*[NAN] * len(RAW))
    case = Case(
        [column(*RAW), torch.ones(len(RAW), dtype=torch.float64)],
        [Rule("one", **rules), Rule("other")],
        [1.0, 1.0],
        [nothing if fixed is None else fixed, nothing],
        is_left_out=left_out,
    )
    return case.settle(), case


def test_they_have_no_score_and_show_what_they_had() -> None:
    found, _ = settled()
    assert found.is_unscorable.tolist() == LEFT_OUT.tolist()
    assert found.totals.isnan().tolist() == LEFT_OUT.tolist()
    assert found.raw[:, 0].tolist() == list(RAW)
    assert not settled(left_out=None)[0].totals.isnan().any()  # negative control


@pytest.mark.parametrize("number", [0.0, -5.0])
def test_a_closed_gates_number_does_not_include_an_excluded_row(number: float) -> None:
    """The gates of rows 1 and 2 are closed: row 1 is left out all the same, and row 2 is not."""
    fixed = column(NAN, number, number, *[NAN] * 5)
    found, _ = settled(fixed=fixed)
    assert found.unfilled[1].isnan().all()
    assert found.totals.isnan().tolist() == LEFT_OUT.tolist()
    assert found.totals[2] == number + 1.0
    back, _ = settled(fixed=fixed, left_out=None)
    assert back.totals[1] == number + 1.0  # negative control


@pytest.mark.parametrize(
    ("normalize", "spans"),
    [
        ("group", [((1.0, 4.0, 3.0), (0, 4)), ((10.0, 30.0, 80.0), (4, 8))]),
        ("batch", [((1.0, 4.0, 3.0, 10.0, 30.0, 80.0), (0, 8))]),
        ("running", [((1.0, 4.0, 3.0, 10.0, 30.0, 80.0), (0, 8))]),
    ],
)
def test_they_are_in_no_deviation(normalize: str, spans: list[tuple[tuple[float, ...], tuple[int, int]]]) -> None:
    """statistics.stdev, with n - 1, of the other rows; with the 900s it would be in the hundreds."""
    found, case = settled(normalize=normalize)
    for kept, (start, end) in spans:
        divisor = statistics.stdev(kept)
        expected = [value / divisor + 1.0 for row, value in enumerate(RAW[start:end], start) if not LEFT_OUT[row]]
        rows = [row for row in range(start, end) if not LEFT_OUT[row]]
        assert found.totals[rows].tolist() == pytest.approx(expected, rel=1e-12)
    if normalize == "running":
        assert case.running["one"].count == 6
    with_all, _ = settled(normalize=normalize, left_out=None)
    assert with_all.divisors[0, 0] > 100  # negative control


def test_they_are_in_no_fill() -> None:
    """In the first group the reward applies to 1 and 3 beside the row that is left out: the gap is filled with 2."""
    raw = column(1.0, 900.0, NAN, 3.0, *RAW[4:])
    case = Case([raw, torch.ones(8, dtype=torch.float64)], [Rule("one"), Rule("other")], [1.0, 1.0])
    case.is_left_out = LEFT_OUT
    assert case.settle().effective[2, 0] == 2.0
    case.is_left_out = None
    assert case.settle().effective[2, 0] == pytest.approx((1 + 900 + 3) / 3)  # negative control
