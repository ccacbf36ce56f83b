"""Curves grow with every log event, trends in noise are against scipy, and a configuration is read with defaults."""

from __future__ import annotations

import math
import tracemalloc
from typing import Any

import numpy as np
import pytest
from scipy import stats

from rlhf_cli.analysis.diagnosis import run_diagnosis
from rlhf_cli.analysis.diagnosis.logged import Curve, Finding, Log, RunSetup, Trend
from rlhf_cli.analysis.diagnosis.reward_findings import gate
from rlhf_cli.analysis.diagnosis.run_diagnosis import CHECKS, look
from rlhf_cli.tables.metrics import FINDING_KINDS
from tests.support.planted_logs import events_of, reward


def test_curves_and_nulls() -> None:
    log = Log.of(
        [
            {"step": 1, "loss": 1.0, "reward": None},
            {"step": 2, "eval_loss": 3.0},
            {"step": 2, "loss": math.nan, "reward": 0.5},
            {"step": 3, "loss": 0.5, "epoch": 1},
            {"step": 3, "train_runtime": 9.0, "loss": 7.0},
        ],
        max_steps=6,
    )
    assert (log.curve("loss").values.tolist(), log.curve("loss").steps.tolist()) == ([1.0, 0.5], [1, 3])
    assert (log.nulls("loss"), log.nulls("reward"), log.nulls("nothing")) == (1, 1, 0)
    assert (log.num_events, log.step, len(log.curve("nothing"))) == (3, 3, 0)
    assert [log.too_early(share) is None for share in (0.5, 0.51)] == [True, False]
    assert log.curve("nothing", "eval_loss").metric == "eval_loss"
    assert log.curve("nothing", "none").metric == "nothing"
    assert (Log().step, Log().too_early(1.0)) == (0, None)
    log.take(4, {"loss": 2.0})
    assert log.curve("loss").values.tolist() == [1.0, 0.5, 2.0]


def test_a_step_that_no_training_has_is_taken_as_the_nearest() -> None:
    """Steps are kept in 31 bits, and squared as floating-point numbers: the sum of two squares has 63 bits."""
    loss = Log.of([{"step": step, "loss": 1.0 + step} for step in (-3, 0, 0, 0, 2**40, 2**40)]).curve("loss")
    assert loss.steps.tolist() == [0, 0, 0, 0, 2**31 - 1, 2**31 - 1]
    assert (trend := loss.trend()) is not None
    assert trend.change == pytest.approx(2**40, rel=1e-6)


def test_the_rounding_of_large_values_is_no_noise() -> None:
    line = Log.of([{"step": step, "loss": 1e6 + 0.1 * step} for step in range(40)]).curve("loss").trend()
    assert line is not None
    assert (line.error, line.change) == (0.0, pytest.approx(3.9, rel=1e-6))


def test_rewards_and_weights() -> None:
    """A weight is the last one, unless it has changed by more than rounding: a billionth."""
    entry = {"rewards/a/mean": 1.0, "rewards/a/weight": 0.0, "rewards/b/mean": None, "rewards/truncation/mean": 0.0}
    log = Log.of([{"step": step, **entry, "rewards/c/mean": 1.0, "rewards/c/weight": step} for step in (1, 2)])
    assert (log.rewards(), log.weight("a"), log.weight("b"), log.weight("c")) == (["a", "c", "b"], 0.0, 1.0, None)
    for first, last in ((0.1, 0.1 + 5e-10), (-1e6, -1e6 - 1e-4)):
        log = Log.of([{"step": step, "rewards/a/weight": one} for step, one in enumerate((first, last))])
        assert log.weight("a") == last
    log = Log.of([{"step": step, "rewards/a/weight": 0.5 + 1.5e-9 * step} for step in (0, 1)])
    assert log.weight("a") is None


def test_a_share_of_a_curve_is_rounded_to_points() -> None:
    """Of 19 points a tenth is 1.9, two points; of 3 it is 0.3, and one is the least."""
    long, short, none = (curve(range(1, count + 1)) for count in (19, 3, 0))
    assert long.last(0.1).values.tolist() == long.last(0.1).steps.tolist() == [18.0, 19.0]
    assert long.first(0.1).steps.tolist() == [1.0, 2.0]
    assert (short.last(0.1).values.tolist(), short.first(0.1).values.tolist()) == ([3.0], [1.0])
    assert (len(none.last(0.1)), len(none.first(0.1))) == (0, 0)
    assert "not logged" in str(none.too_few(1))
    assert "3 log events" in str(short.too_few(4))
    # Evidence fits in a line of a terminal: of 120 points every second is drawn.
    assert [len(curve(range(count)).evidence().steps) for count in (119, 120)] == [119, 60]


def curve(values: Any, steps: Any = None) -> Curve:
    values = np.asarray(values, dtype=float)
    return Curve(np.arange(1, len(values) + 1) if steps is None else np.asarray(steps), values, "x")


def remembering(rho: float, n: int, rng: np.random.Generator) -> np.ndarray:
    """A stationary AR(1) process of deviation 1."""
    values = np.empty(n)
    values[0] = rng.standard_normal()
    for k in range(1, n):
        values[k] = rho * values[k - 1] + np.sqrt(1 - rho**2) * rng.standard_normal()
    return values


@pytest.mark.parametrize(("rho", "n", "most"), [(0.0, 30, 0.01), (0.3, 60, 0.015), (0.6, 120, 0.02), (0.9, 120, 0.04)])
def test_noise_alone_is_seldom_a_trend(rho: float, n: int, most: float) -> None:
    """At 0.005 on one side, 500 draws. Noise with a memory of ten steps in a hundred fails more often."""
    rng = np.random.default_rng(7)
    lines = [curve(remembering(rho, n, rng)).trend() for _ in range(500)]
    assert np.mean([line is not None and line.rises(0.005) for line in lines]) <= most


def test_negative_control_without_the_memory_it_would_be_one_in_six() -> None:
    """Ordinary regression takes noise that remembers for a trend: at rho 0.9, n 120, far above its 0.005."""
    rng = np.random.default_rng(7)
    lines = [stats.linregress(np.arange(120), remembering(0.9, 120, rng)) for _ in range(200)]
    assert np.mean([line.pvalue / 2 < 0.005 and line.slope > 0 for line in lines]) > 0.15


def test_a_bent_curve_has_risen() -> None:
    """It rises by 0.99 and stays up, under noise of 0.1: 30 points tell that in nearly all draws."""
    rng, x = np.random.default_rng(1), np.linspace(0, 1, 30)
    lines = [curve(1 - np.exp(-5 * x) + 0.1 * rng.standard_normal(30)).trend() for _ in range(100)]
    assert np.mean([line is not None and line.rises(0.005) for line in lines]) > 0.95


def test_the_interval_covers() -> None:
    rng = np.random.default_rng(11)
    lines = [curve(0.05 * np.arange(40) + rng.standard_normal(40)).trend() for _ in range(400)]
    inside = [line.interval(0.05)[0] <= 0.05 * 39 <= line.interval(0.05)[1] for line in lines if line is not None]
    assert 0.92 <= np.mean(inside) <= 0.99


def test_a_log_takes_little_memory() -> None:
    """12 bytes a value, and room to grow; lists took 40 and more, most of what a training grew by."""
    log = Log()
    tracemalloc.start()
    for step in range(2000):
        log.take(step, {f"metric {number}": step / (number + 3.0) for number in range(50)})
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size < 16 * 50 * 2000
    assert log.curve("metric 3").values[-1] == 1999 / 6.0


def test_malformed_entries_of_a_configuration_get_defaults() -> None:
    config: dict[str, Any] = {
        "trainer": {
            "name": "ppo",
            "baseline": "critic",
            "args": {"beta": 0.5, "max_completion_length": 7, "seed": True},
        },
        "rewards": {
            "plain": {},
            "light": {"weight": 0.25, "gate": {"by": "plain"}},
            "moving": {"weight": {"from": 0, "to": 1}, "gate": [{"by": "plain"}, {"min": 1}, "x", {"by": "light"}]},
            "broken": 3,
        },
        "kl": {"coef": 2},
        "truncation": {"policy": "mask"},
    }
    setup = RunSetup.of(config, "my run")
    assert (setup.folder, setup.trainer, setup.has_critic, setup.truncation) == ("'my run'", "ppo", True, "mask")
    numbers = [setup.number(name, 9.0) for name in ("kl.coef", "beta", "seed", "x")]
    assert (setup.limit, numbers, list(setup.rewards)) == (7, [2.0, 0.5, 9.0, 9.0], ["plain", "light", "moving"])
    shut = {f"rewards/{name}/open_fraction": 0.0 for name in setup.rewards}
    found = gate(Log.of({"step": step, **shut} for step in range(10)), setup)
    gates = [one.what.partition(" is ")[0] for one in found if isinstance(one, Finding)]
    assert gates == ["the gate of light on plain", "the gate of moving on plain and light"]
    nothing = RunSetup.of({"kl": {"coef": {"target": 1}}, "trainer": {"name": None, "baseline": "group"}, "rewards": 3})
    assert nothing == RunSetup()
    assert (nothing.trainer, nothing.has_critic, nothing.truncation, nothing.limit) == ("", False, "none", 256)


def test_the_worst_is_first_and_equals_keep_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    severities = {"a": "note", "b": "warning", "c": "serious", "d": "note", "e": "warning"}
    found = {kind: Finding("", severity, "", (), 0, 0, kind=kind) for kind, severity in severities.items()}
    monkeypatch.setattr(run_diagnosis, "CHECKS", {kind: lambda log, setup, one=one: one for kind, one in found.items()})
    assert [one.kind for one in look(Log(), RunSetup()).findings] == list("cbead")


def test_every_kind_is_checked_once_and_reward_kinds_need_rewards() -> None:
    def kinds(events: Any, wanted: Any = None, has_critic: bool = True) -> set[str]:
        found = look(Log.of(events), RunSetup(has_critic=has_critic), wanted)
        return {one.kind for one in (*found.findings, *found.fine, *found.unseen)}

    with_rewards = events_of(reward("a", mean=[0.5] * 20))
    assert kinds(with_rewards) == set(FINDING_KINDS) == set(CHECKS)
    assert kinds([]) == set(FINDING_KINDS) - {"dead_reward"}  # nothing was logged: there may be rewards
    assert kinds([{"step": 1, "loss": 1.0}]) == {"non_finite", "overoptimised", "learning", "time"}
    assert kinds(with_rewards, ["kl", "time"]) == {"kl", "time"}
    assert kinds(with_rewards, has_critic=False) == set(FINDING_KINDS) - {"explained_variance", "value_loss"}


def santer(steps: Any, values: Any) -> tuple[float, float] | None:
    """Error and freedom by the formulas in the head of trends.py, with numpy's own fits."""
    n = len(values)
    residuals = values - np.polyval(np.polyfit(steps, values, 2), steps)
    memory = max(0.0, residuals[1:] @ residuals[:-1] / (residuals @ residuals))
    memory = min(0.95, memory + (1 + 3 * memory) / n) if memory else 0.0
    effective = n * (1 - memory) / (1 + memory)
    if effective < 4:
        return None
    freedom = max(1.0, effective - 3)
    spread = ((steps - steps.mean()) ** 2).sum()
    return float(np.sqrt(residuals @ residuals / freedom / spread) * (steps[-1] - steps[0])), freedom


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(("n", "rho"), [(6, 0.0), (12, 0.5), (30, 0.3), (40, 0.9), (200, 0.98)])
def test_a_trends_error_is_that_of_its_papers(n: int, rho: float, seed: int) -> None:
    """At steps that are not evenly spaced; the slope is scipy's."""
    rng = np.random.default_rng(seed)
    steps, values = np.cumsum(rng.integers(1, 4, n)).astype(float), np.zeros(n)
    for k in range(n):
        values[k] = (rho * values[k - 1] if k else 0.0) + rng.standard_normal()
    values += 0.05 * steps
    found, expected = curve(values, steps).trend(), santer(steps, values)
    if expected is None:
        assert found is None
        return
    line = stats.linregress(steps, values)
    assert (found.error, found.freedom) == pytest.approx(expected)
    assert found.start + found.change == pytest.approx(line.intercept + line.slope * steps[-1])
    assert found.start == pytest.approx(line.intercept + line.slope * steps[0])


@pytest.mark.parametrize(("freedom", "alpha"), [(1.0, 0.005), (5.4, 0.05), (36.6, 0.3), (0.2, 0.005)])
def test_a_trend_is_judged_by_students_t(freedom: float, alpha: float) -> None:
    """scipy's quantiles: one side for rises and falls, both for the interval."""
    one, two = (stats.t.ppf(1 - alpha / sides, max(1, round(freedom))) for sides in (1, 2))
    for factor in (0.999, 1.001):
        up, down = (Trend(0.0, sign * factor * one * 0.5, 0.5, freedom) for sign in (1, -1))
        assert (up.rises(alpha), down.falls(alpha)) == (factor > 1, factor > 1)
        assert not up.falls(alpha)
        assert not down.rises(alpha)
    low, high = Trend(0.0, 2.0, 0.5, freedom).interval(alpha)
    assert (low, high) == (pytest.approx(2 - 0.5 * two), pytest.approx(2 + 0.5 * two))


def test_a_curve_that_does_not_change_neither_rises_nor_falls() -> None:
    """Nor does one at two steps alone, through which no parabola goes, fail."""
    level = curve([0.5] * 9).trend()
    assert (level.rises(0.05), level.falls(0.05)) == (False, False)
    assert curve([0.0, 1.0, 0.5] * 2, [1, 1, 1, 2, 2, 2]).trend().change == pytest.approx(0.0)


def test_a_line_without_noise_has_no_error() -> None:
    """This also holds far from 0 and for tiny values, where only rounding is left."""
    for values in (np.arange(5.0), 1e6 + np.arange(20.0), 1e-7 * np.arange(20.0), np.full(20, 1e8)):
        found = curve(values).trend()
        assert (found.error, found.freedom) == (0.0, len(values) - 3)
        assert found.change == pytest.approx(values[-1] - values[0], rel=1e-6, abs=1e-6)
    assert curve(np.arange(4.0)).trend() is None
    assert curve([1.0, 2.0, 1.0, 2.0, 3.0], [3] * 5).trend() is None  # all of one step
    assert curve([0.0, 0.01] * 10).trend().error > 0.001
