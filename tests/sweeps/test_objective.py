"""What a run is worth to a search, from what it has logged."""

from __future__ import annotations

import math

import pytest

from rlhf_cli.errors import RunError
from rlhf_cli.sweeps.search_space import read_objective, refuse_unlogged, value_so_far


def test_of_what_is_held_out_it_is_the_last_value() -> None:
    logged = [float(step) for step in range(1, 31)]
    assert value_so_far(read_objective("eval_greedy/rewards/a"), logged) == 30
    assert value_so_far(read_objective("eval_greedy/rewards/a"), [0.2, 0.9, 0.4, math.nan]) == 0.4


@pytest.mark.parametrize("logged", [[], [math.nan, math.inf]])
def test_what_has_no_number_has_no_value(logged: list[float]) -> None:
    assert value_so_far(read_objective("-kl"), logged) is None


def test_an_objective_that_nobody_logs_is_told_with_the_nearest() -> None:
    with pytest.raises(RunError) as caught:
        refuse_unlogged([read_objective("-rewards/a/maen")], {"rewards/a/mean", "loss"}, where="runs/x")
    assert caught.value.hint == "sweep.objective=-rewards/a/mean"


def test_the_name_of_a_reward_stands_for_its_raw_mean() -> None:
    assert str(read_objective("-brevity", ["correct", "brevity"])) == "-rewards/brevity/mean"
    assert str(read_objective("loss", ["correct"])) == "loss"
