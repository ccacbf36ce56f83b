"""What a run is worth to a search, from its log events."""

from __future__ import annotations

import pytest

from rlhf_cli.errors import RunError
from rlhf_cli.sweeps.objective import read_objective, refuse_unlogged, value_so_far

EVENTS = [{"step": step, "time_s": 1.0, "rewards/a/mean": float(step), "kl": None} for step in range(1, 31)]


def test_it_is_the_mean_of_the_last_tenth() -> None:
    assert value_so_far(read_objective("rewards/a/mean"), EVENTS) == pytest.approx((28 + 29 + 30) / 3)


def test_of_what_is_held_out_it_is_the_last_value() -> None:
    events = [{"step": step, "eval_greedy/rewards/a": step / 10} for step in (10, 20)]
    assert value_so_far(read_objective("eval_greedy/rewards/a"), events) == 2.0


@pytest.mark.parametrize("metric", ["kl", "absent"])
def test_what_has_no_number_has_no_value(metric: str) -> None:
    assert value_so_far(read_objective(f"-{metric}"), EVENTS) is None


def test_an_objective_that_nobody_logs_is_told_with_the_nearest() -> None:
    with pytest.raises(RunError) as caught:
        refuse_unlogged([read_objective("-rewards/a/maen")], EVENTS, where="sweep.yaml")
    assert caught.value.hint == "sweep.objective=-rewards/a/mean"


def test_one_that_is_logged_passes() -> None:
    refuse_unlogged([read_objective("-kl")], EVENTS, where="sweep.yaml")
