"""Metrics that are mistyped in `sweep.objective`, `stop` and `--watch` are told before anything runs."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rlhf_cli.config.rules.logged_metrics import unlogged
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.errors import ConfigError
from rlhf_cli.sweeps.checked_jobs import refuse_unlogged_watch

pytestmark = pytest.mark.usefixtures("place")
Judged = Callable[..., Experiment]


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("rewrd", "reward"),
        ("brevty", "brevity"),
        ("lenght", "completions/mean_length"),
        ("entorpy", "entropy"),
        ("rewards/brevty/mean", "rewards/brevity/mean"),
    ],
)
def test_a_slip_is_told_with_what_was_meant(judged: Judged, typed: str, meant: str) -> None:
    experiment = judged("exp=quickstart")
    problem = unlogged(typed, experiment)
    assert problem is not None
    assert problem.nearest == meant
    with pytest.raises(ConfigError) as caught:
        refuse_unlogged_watch(typed, [experiment, experiment])
    assert caught.value.hint == f"--watch {meant}"


@pytest.mark.parametrize("typed", ["reward", "brevity", "total", "completions/mean_length", "my_own_metric", "loss"])
def test_negative_control_what_may_come_is_left_alone(judged: Judged, typed: str) -> None:
    """Also a name that a reward of the user's may log: it is like none that is known."""
    experiment = judged("exp=quickstart")
    assert unlogged(typed, experiment) is None
    refuse_unlogged_watch(typed, [experiment])
    refuse_unlogged_watch(None, [experiment])


def test_what_one_run_of_a_sweep_logs_can_be_watched(judged: Judged) -> None:
    refuse_unlogged_watch("short", [judged("exp=quickstart"), judged("exp=quickstart", "reward@rewards.short=brevity")])


pytestmark = pytest.mark.usefixtures("place")
Refused = Callable[..., ConfigError]


@pytest.mark.parametrize(
    ("typed", "hint"),
    [("corect", "correct"), ("-rewards/format/maen", "-rewards/format/mean"), ("kl", None), ("eval_loss", "loss")],
)
def test_an_objective_that_no_run_can_log(refused: Refused, typed: str, hint: str | None) -> None:
    error = refused("exp=quickstart", "sweep=weights", f"sweep.objective={typed}")
    assert error.what.startswith(f"no run of this experiment logs {typed.removeprefix('-')}")
    assert error.hint == (None if hint is None else f"sweep.objective={hint}")
