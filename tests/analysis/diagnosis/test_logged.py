"""Curves grow with every log event, leave out what is no number, and stay bounded."""

from __future__ import annotations

import math

from rlhf_cli.analysis.diagnosis.logged import Log


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
