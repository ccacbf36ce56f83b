"""From raw scores to what TRL sums, against numpy, against TRL's formulas and against numbers worked out by hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor

from rlhf_cli.errors import RewardError
from rlhf_cli.numerics.reward_columns import (
    RunningDeviation,
    clipped,
    divisors,
    filled,
    normalized_in_group,
)
from rlhf_cli.stack.settling import Settled, settle

NAN = float("nan")


def column(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


@dataclass(frozen=True)
class Rule:
    name: str
    offset: float = 0.0
    clip: tuple[float, float] | None = None
    normalize: Any = "none"
    gates: tuple[Any, ...] = ()
    on_error: Any = "raise"


@dataclass
class Case:
    """Settles columns of raw scores; `fixed` NaN everywhere unless given."""

    raw: list[Tensor]
    rules: list[Rule]
    weights: list[float]
    fixed: list[Tensor] | None = None
    running: dict[str, RunningDeviation] = field(default_factory=dict)
    num_generations: int = 4
    aggregate: Any = "sum"
    is_training: bool = True

    def settle(self) -> Settled:
        raw = torch.stack(self.raw, dim=1)
        nothing = torch.full((raw.shape[0], len(self.rules)), NAN, dtype=raw.dtype)
        names = [rule.name for rule in self.rules]
        names += [f"env{index}" for index in range(raw.shape[1] - len(names))]
        settled, self.running = settle(
            raw,
            nothing if self.fixed is None else torch.stack(self.fixed, dim=1),
            torch.tensor(self.weights, dtype=raw.dtype),
            self.rules,
            self.running,
            names=names,
            aggregate=self.aggregate,
            num_generations=self.num_generations,
            is_training=self.is_training,
        )
        return settled


def one(*raw: float, fixed: Tensor | None = None, weight: float = 1.0, **rules: Any) -> Settled:
    return Case([column(*raw)], [Rule("one", **rules)], [weight], None if fixed is None else [fixed]).settle()


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

    def test_negative_control_the_order_matters(self) -> None:
        """Clip before the offset would give 1, 3, -2, 3 instead of 1, 5, 0, 6."""
        assert one(4, 8, 1, 20, offset=3.0, clip=(0.0, 6.0)).effective[:, 0].tolist() == [1.0, 5.0, 0.0, 6.0]

    def test_raw_stays_raw(self) -> None:
        assert one(4, 8, 1, 20, offset=3.0, clip=(0.0, 6.0), normalize="batch").raw[:, 0].tolist() == [4, 8, 1, 20]

    def test_nothing_set_is_the_identity(self) -> None:
        settled = one(4, 8, 1, 20)
        assert settled.for_trl[:, 0].tolist() == [4.0, 8.0, 1.0, 20.0]
        assert settled.divisors[:, 0].tolist() == [1.0] * 4
        assert settled.trl_weights.tolist() == [1.0]

    def test_clipped_keeps_nan(self) -> None:
        assert clipped(column(-5, NAN, 5), 1.0, (-2.0, 2.0))[[0, 2]].tolist() == [-2.0, 2.0]
        assert clipped(column(-5, NAN, 5), 1.0, (-2.0, 2.0))[1].isnan()


class TestNormalise:
    rows = numpy.random.default_rng(0).normal(3.0, 2.0, 12)

    def test_batch(self) -> None:
        found = divisors(column(*self.rows), "batch", 4, RunningDeviation())
        assert found.tolist() == pytest.approx([numpy.std(self.rows, ddof=1)] * 12)

    def test_group(self) -> None:
        found = divisors(column(*self.rows), "group", 4, RunningDeviation())
        expected = numpy.std(self.rows.reshape(3, 4), axis=1, ddof=1).repeat(4)
        assert found.tolist() == pytest.approx(expected.tolist())
        assert len(set(found.tolist())) == 3  # negative control: not the batch's

    def test_nan_is_left_out(self) -> None:
        values = self.rows.copy()
        values[[1, 2, 7]] = NAN
        found = divisors(column(*values), "group", 4, RunningDeviation())
        expected = numpy.nanstd(values.reshape(3, 4), axis=1, ddof=1).repeat(4)
        assert found.tolist() == pytest.approx(expected.tolist())
        batch = divisors(column(*values), "batch", 4, RunningDeviation())
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

    @pytest.mark.parametrize("normalize", ["batch", "group"])
    def test_a_single_value_is_left_as_it_is(self, normalize: Any) -> None:
        assert one(NAN, 7, NAN, NAN, normalize=normalize).unfilled[1, 0] == 7.0

    def test_negative_control_a_small_spread_is_none_the_less_one(self) -> None:
        assert one(1.0, 1.001, 1.0, 1.001, normalize="batch").effective[0, 0] > 100


class TestRunning:
    @pytest.mark.parametrize("sizes", [[40], [8] * 5, [1] * 40, [3, 36, 1], [0, 40]], ids=str)
    def test_is_the_deviation_of_all_rows_in_any_split(self, sizes: list[int]) -> None:
        rows = numpy.random.default_rng(1).normal(100.0, 0.5, 40)
        rows[[4, 17]] = NAN
        state, begin = RunningDeviation(), 0
        for size in sizes:
            state = state.updated(column(*rows[begin : begin + size]))
            begin += size
        assert state.deviation == pytest.approx(numpy.nanstd(rows, ddof=1), rel=1e-9)
        assert state.mean == pytest.approx(numpy.nanmean(rows), rel=1e-12)
        assert state.count == 38

    def test_batches_with_nothing_in_them_change_nothing(self) -> None:
        state = RunningDeviation().updated(column(1, 2, 3))
        assert state.updated(column(NAN, NAN)) == state
        assert state.updated(column()) == state

    def test_before_two_values_there_is_none(self) -> None:
        assert RunningDeviation().deviation == 0.0
        assert RunningDeviation().updated(column(5)).deviation == 0.0

    def test_this_batch_counts_and_the_last_ones_too(self) -> None:
        case = Case([column(1, 2, 3, 4)], [Rule("one", normalize="running")], [1.0])
        first = case.settle()
        assert first.divisors[0, 0] == pytest.approx(numpy.std([1, 2, 3, 4], ddof=1))
        case.raw = [column(10, 20, 30, 40)]
        second = case.settle()
        expected = numpy.std([1, 2, 3, 4, 10, 20, 30, 40], ddof=1)
        assert second.divisors[:, 0].tolist() == pytest.approx([expected] * 4)
        assert second.effective[3, 0] == pytest.approx(40 / expected)

    def test_what_is_seen_is_after_offset_and_clip_and_without_closed_rows(self) -> None:
        rule = Rule("one", offset=1.0, clip=(-2.0, 2.0), normalize="running")
        case = Case([column(1, 2, 99, NAN)], [rule], [1.0], fixed=[column(NAN, NAN, NAN, 5.0)])
        case.settle()
        assert case.running["one"].count == 3
        assert case.running["one"].deviation == pytest.approx(1.0)  # of 0, 1, 2

    def test_evaluation_reads_it_and_does_not_write_it(self) -> None:
        case = Case([column(1, 2, 3, 4)], [Rule("one", normalize="running")], [1.0])
        case.settle()
        before = dict(case.running)
        case.raw, case.is_training = [column(10, 20, 30, 40)], False
        settled = case.settle()
        assert case.running == before
        assert settled.divisors[0, 0] == pytest.approx(numpy.std([1, 2, 3, 4], ddof=1))

    def test_the_state_given_is_not_written_to(self) -> None:
        given: dict[str, RunningDeviation] = {}
        Case([column(1, 2, 3, 4)], [Rule("one", normalize="running")], [1.0], running=given).settle()
        assert given == {}

    def test_others_have_no_state(self) -> None:
        case = Case([column(1, 2, 3, 4)], [Rule("one", normalize="batch")], [1.0])
        case.settle()
        assert case.running == {}


class TestFilled:
    def test_an_excluded_entry_is_its_groups_mean(self) -> None:
        matrix = torch.stack([column(1, 1, 1, 1, 1, 1), column(0.5, NAN, 0.1, 7, NAN, 9)], dim=1)
        assert filled(matrix, 3)[:, 1].tolist() == pytest.approx([0.5, 0.3, 0.1, 7.0, 8.0, 9.0])
        assert filled(matrix, 3)[:, 0].tolist() == [1.0] * 6

    def test_a_row_to_which_nothing_applies_stays(self) -> None:
        matrix = torch.stack([column(1, NAN, 3, 4), column(NAN, NAN, 5, 7)], dim=1)
        found = filled(matrix, 4)
        assert found[1].isnan().all()
        assert found[0, 1] == 6.0  # the mean of 5 and 7
        assert not found[[0, 2, 3]].isnan().any()

    def test_a_component_that_applies_nowhere_in_a_group_is_nothing_in_it(self) -> None:
        matrix = torch.stack([column(1, 2, 3, 4), column(NAN, NAN, 5, 7)], dim=1)
        assert filled(matrix, 2)[:, 1].tolist() == [0.0, 0.0, 5.0, 7.0]

    def test_negative_control_nothing_missing_nothing_filled(self) -> None:
        matrix = torch.randn(6, 3)
        assert torch.equal(filled(matrix, 3), matrix)


class TestSettledRows:
    def test_an_all_nan_row_stays_nan_for_every_aggregate(self) -> None:
        raw = [column(1, NAN, 3, 5), column(2, NAN, NAN, 1)]
        for aggregate in ("sum", "normalize_then_sum", lambda rewards, weights: [1.0, None, 2.0, 3.0]):
            settled = Case(raw, [Rule("a"), Rule("b")], [1.0, 1.0], aggregate=aggregate).settle()
            assert settled.for_trl.isnan().all(dim=1).tolist() == [False, True, False, False]
            assert settled.is_unscorable.tolist() == [False, True, False, False]

    def test_a_closed_gates_number_makes_a_row_scorable(self) -> None:
        settled = one(1, NAN, 3, 4, fixed=column(NAN, 0.0, NAN, NAN))
        assert settled.is_unscorable.tolist() == [False] * 4
        assert settled.effective[:, 0].tolist() == [1.0, 0.0, 3.0, 4.0]
        assert one(1, NAN, 3, 4).is_unscorable.tolist() == [False, True, False, False]  # negative control

    def test_unfilled_says_where_it_does_not_apply(self) -> None:
        settled = Case([column(1, 2, 3, 4), column(NAN, 2, NAN, 4)], [Rule("a"), Rule("b")], [1.0, 1.0]).settle()
        assert settled.unfilled[:, 1].isnan().tolist() == [True, False, True, False]
        assert settled.effective[:, 1].tolist() == [3.0, 2.0, 3.0, 4.0]

    def test_an_environments_columns_pass_through(self) -> None:
        """No rules, no fixed values of its own; excluded and summed like any other."""
        rules = [Rule("a", offset=1.0, normalize="batch")]
        settled = Case([column(1, 2, 3, 4), column(7, NAN, 9, 11)], rules, [1.0, 0.5]).settle()
        assert settled.names == ("a", "env0")
        assert settled.unfilled[[0, 2, 3], 1].tolist() == [7.0, 9.0, 11.0]
        assert settled.effective[:, 1].tolist() == [7.0, 9.0, 9.0, 11.0]
        assert settled.contributions[:, 1].tolist() == [3.5, 4.5, 4.5, 5.5]
        assert settled.divisors.shape == (4, 1)


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
        assert seen == [({"a": [1, 2, 3, 4], "b": [10, 30, 30, 50]}, {"a": 0.5, "b": -2.0})]
        assert (settled.for_trl * settled.trl_weights).nansum(dim=1).tolist() == [7.0, 8.0, 9.0, 10.0]
        assert settled.weights.tolist() == [0.5, -2.0]  # as they are logged

    def test_sees_none_where_nothing_applies_and_may_say_none(self) -> None:
        seen: list[Any] = []

        def aggregate(rewards: Any, weights: Any) -> list[float | None]:
            seen.append(rewards["a"])
            return [None if value is None else float(value) for value in rewards["a"]]

        settled = self.settled(aggregate, (column(1, NAN, 3, 4), column(1, NAN, 1, 1)))
        assert seen == [[1.0, None, 3.0, 4.0]]
        assert settled.for_trl.isnan().all(dim=1).tolist() == [False, True, False, False]

    def test_none_takes_a_row_out_that_has_scores(self) -> None:
        settled = self.settled(lambda rewards, weights: [1.0, 2.0, None, 4.0])
        assert settled.for_trl.isnan().all(dim=1).tolist() == [False, False, True, False]

    def test_the_wrong_number_is_refused_with_both(self) -> None:
        with pytest.raises(RewardError, match="no total a row"):
            self.settled(lambda rewards, weights: [1.0, 2.0, 3.0])


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
        assert not torch.allclose(summed, expected, atol=0.1)  # negative control: the plain sum

    def test_with_rows_to_which_nothing_applies(self) -> None:
        matrix = torch.randn(8, 3, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
        matrix[[1, 6]] = NAN
        expected = trl_normalize_then_sum(matrix, torch.tensor(self.weights, dtype=torch.float64), 4)
        found = trl_grpo_batch(self.settled(matrix), 4)
        assert found.tolist() == pytest.approx(expected.tolist(), abs=1e-9)
        assert found[[1, 6]].tolist() == [0.0, 0.0]

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

    def test_contributions_are_those_that_are_logged(self) -> None:
        matrix = torch.stack([column(1, 2, 3, 4), column(1, NAN, 3, NAN), column(0, 0, 0, 0)], dim=1)
        assert self.settled(matrix).contributions[:, 0].tolist() == [1.0, 2.0, 3.0, 4.0]
