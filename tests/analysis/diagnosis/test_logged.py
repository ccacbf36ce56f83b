"""Curves grow with every log event and skip other values than numbers; trends in noise, against scipy."""

from __future__ import annotations

import math
import tracemalloc

import numpy as np
import pytest
from scipy import stats

from rlhf_cli.analysis.diagnosis.logged import Curve, Log


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
    assert log.curve("loss").values.tolist() == [1.0, 0.5]
    assert log.curve("loss").steps.tolist() == [1, 3]
    assert (log.nulls("loss"), log.nulls("reward"), log.nulls("nothing")) == (1, 1, 0)
    assert (log.num_events, log.step, log.progress) == (3, 3, 0.5)
    assert len(log.curve("nothing")) == 0
    assert log.first_of("nothing", "eval_loss").metric == "eval_loss"


def test_rewards_and_weights() -> None:
    entry = {"rewards/a/mean": 1.0, "rewards/a/weight": 0.0, "rewards/b/mean": None, "rewards/truncation/mean": 0.0}
    log = Log.of([{"step": step, **entry, "rewards/c/mean": 1.0, "rewards/c/weight": step} for step in (1, 2)])
    assert log.rewards() == ["a", "c", "b"]
    assert (log.weight("a"), log.weight("b"), log.weight("c")) == (0.0, 1.0, None)


def test_a_share_of_a_curve_is_rounded_to_points() -> None:
    """Of 19 points a tenth is 1.9, two points; of 3 it is 0.3, and one is the least."""
    log = Log.of([{"step": step, "loss": float(step)} for step in range(1, 20)])
    assert log.curve("loss").last(0.1).values.tolist() == [18.0, 19.0]
    assert log.curve("loss").first(0.1).steps.tolist() == [1.0, 2.0]
    short = Log.of([{"step": step, "loss": float(step)} for step in range(1, 4)]).curve("loss")
    assert (short.last(0.1).values.tolist(), short.first(0.1).values.tolist()) == ([3.0], [1.0])


def test_a_curve_that_grows_is_seen_growing() -> None:
    log = Log.of([{"step": 1, "loss": 1.0}])
    assert len(log.curve("loss")) == 1
    log.take(2, {"loss": 2.0})
    assert log.curve("loss").values.tolist() == [1.0, 2.0]


def curve(values: np.ndarray) -> Curve:
    return Curve("x", np.arange(1.0, len(values) + 1), values)


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
