"""What is found of rewards, each with a log beside it that must not trigger: thresholds by docs/diagnosis.md."""

from __future__ import annotations

import pytest

from rlhf_cli.analysis.diagnosis.finding import RunSetup
from tests.support.planted_logs import found, noisy, reward, seen

RISING = noisy(0.2, 0.8, 0.05)


def pair(correlation: float, *, std_end: float = 0.5, weight: float = 1.0) -> dict[str, list[float | None]]:
    stds = noisy(0.5, std_end, 0.0)
    curves = {**reward("a", mean=RISING, std=stds), **reward("b", mean=RISING, std=stds, weight=[weight] * 40)}
    return {**curves, "rewards/correlation/a/b": noisy(correlation, correlation, 0.003)}


@pytest.mark.parametrize("correlation", [0.97, -0.97])
def test_redundant(correlation: float) -> None:
    (finding,) = found(pair(correlation), kind="redundant")
    assert finding.subject == "a/b"
    assert ("undo each other" in finding.what) == (correlation < 0)
    assert f"{correlation:.2f}" in finding.what
    assert finding.last_step == 40
    assert finding.first_step == 21


@pytest.mark.parametrize(
    ("curves", "why"),
    [
        (pair(0.93), "below 0.95"),
        (pair(0.97, std_end=0.05), "both are learned: a few odd rows correlate"),
        (pair(0.97, weight=0.0), "one is only watched"),
        ({**pair(0.97), "rewards/correlation/a/b": [0.99] * 20 + [0.5] * 20}, "only at the beginning"),
        ({**pair(0.97), "rewards/correlation/a/b": [0.99] * 34 + [0.5] * 6}, "in seven of ten of the last events"),
    ],
)
def test_negative_control_not_redundant(curves: dict[str, list[float | None]], why: str) -> None:
    assert found(curves, kind="redundant") == [], why


def test_rewards_that_are_learned_are_said_to_vary_little() -> None:
    """Alike by 0.97, and no finding: why has to be said."""
    (learned,) = seen(pair(0.97, std_end=0.05), kind="redundant").fine
    assert "0.97" in learned.says
    assert "vary little" in learned.says
    (different,) = seen(pair(0.5), kind="redundant").fine
    assert "vary little" not in different.says


def test_redundant_while_both_vary_half_as_much_as_at_first() -> None:
    """A line from 0.5 to 0.25: 0.31 over its last half, beside 0.48 over its first fifth, two thirds of it."""
    (finding,) = found(pair(0.97, std_end=0.25), kind="redundant")
    assert finding.changes[0].words == "rewards.a.weight=0"


@pytest.mark.parametrize(("weight", "lighter"), [(0.3, "b"), (-0.3, "b"), (3.0, "a"), (-3.0, "a")])
def test_of_two_that_say_the_same_the_lighter_is_to_be_watched(weight: float, lighter: str) -> None:
    (finding,) = found(pair(0.97, weight=weight), kind="redundant")
    assert finding.changes[0].words == f"rewards.{lighter}.weight=0"


def test_redundant_needs_enough() -> None:
    short = {name: values[:15] for name, values in pair(0.97).items()}
    diagnosis = seen(short, kind="redundant")
    assert not diagnosis.findings
    assert "20 times" in diagnosis.unseen[0].why


def shares(largest: float, other: float, *, std_end: float = 0.5) -> dict[str, list[float | None]]:
    one = reward("big", mean=RISING, advantage_share=noisy(largest, largest, 0.005))
    stds = noisy(0.5, std_end, 0.0)
    return {**one, **reward("small", mean=RISING, std=stds, weight=[0.01] * 40, advantage_share=[other] * 40)}


def test_one_reward() -> None:
    """A third of the larger one's part: weight 1 times deviation 0.5, by three times the other's deviation of 0.5."""
    (finding,) = found(shares(0.98, 0.02), kind="one_reward")
    assert finding.subject == "big"
    assert finding.changes[0].words == "rewards.small.weight=0.33"


def test_the_weight_to_try_goes_by_both_deviations() -> None:
    """A deviation of 0.5 times a weight of 1 is a third of itself where 0.05 has the weight 0.5 / (3 * 0.05) = 3.3."""
    curves = {**shares(0.98, 0.02), "rewards/small/std": [0.05] * 40}
    (finding,) = found(curves, kind="one_reward")
    assert finding.changes[0].words == "rewards.small.weight=3.3"


def test_negative_control_one_reward() -> None:
    assert found(shares(0.85, 0.15), kind="one_reward") == []
    assert found(shares(0.98, 0.02, std_end=0.05), kind="one_reward") == []  # the other has been learned
    assert found(reward("big", mean=RISING, advantage_share=[1.0] * 40), kind="one_reward") == []


def test_dead_reward() -> None:
    (finding,) = found(reward("a", mean=[0.7] * 12, std=0.0), kind="dead_reward")
    assert finding.severity == "serious"
    assert "0.7 on every row" in finding.what
    (watched,) = found(reward("a", mean=[0.7] * 12, std=0.0, weight=[0.0] * 12), kind="dead_reward")
    assert watched.severity == "warning"
    (never,) = found({**reward("a", mean=[None] * 12, std=[None] * 12), "loss": [0.1] * 12}, kind="dead_reward")
    assert "never applied" in never.what


@pytest.mark.parametrize(
    "curves",
    [
        reward("a", mean=[0.7] * 12, std=0.1),
        reward("a", mean=[*[0.7] * 11, 0.71], std=0.0),
        reward("a", mean=[*noisy(0.2, 1.0, 0.0, n=20), *[1.0] * 20], std=[*[0.3] * 20, *[0.0] * 20]),  # learned
        reward("a", mean=[0.7] * 9, std=0.0),
    ],
)
def test_negative_control_not_dead(curves: dict[str, list[float | None]]) -> None:
    assert found(curves, kind="dead_reward") == []


GATED = RunSetup(trainer="grpo", gated={"style": ("runs",)})


def gated(opened: list[float]) -> dict[str, list[float | None]]:
    n = len(opened)
    return {**reward("style", mean=[0.5] * n, open_fraction=opened), **reward("runs", mean=[0.0] * n, std=0.0)}


def test_gates() -> None:
    (closed,) = found(gated([0.0] * 12), GATED, kind="gate")
    assert (closed.severity, closed.subject) == ("serious", "style")
    assert closed.evidence[1].metric == "rewards/runs/mean"
    (opened,) = found(gated([1.0] * 20), GATED, kind="gate")
    assert opened.severity == "note"


def test_negative_control_gates() -> None:
    assert found(gated([0.05] * 12), GATED, kind="gate") == []
    assert found(gated([*[0.5] * 5, *[1.0] * 20]), GATED, kind="gate") == []  # it has closed
    assert found(gated([1.0] * 20), GATED, max_steps=100, kind="gate") == []  # it may close yet
    assert found(gated([1.0] * 20), kind="gate") == []  # there is none


def test_errors_and_timeouts() -> None:
    """64 rows a batch: 2 of them are 3.1 %, 8 are 12.5 %; 1 timeout is 1.6 %."""

    def failing(errors: float, timeouts: float = 0.0) -> dict[str, list[float | None]]:
        counted = {"calls": [64.0] * 20, "errors": [errors] * 20, "timeouts": [timeouts] * 20}
        return reward("judge", mean=RISING[:20], **counted)

    assert [one.severity for one in found(failing(2), kind="reward_errors")] == ["warning"]
    (many,) = found(failing(8), kind="reward_errors")
    assert many.severity == "serious"
    # With logging_steps=10 the same 64 and 8 are the means of ten rounds, and the run has ten times as many rows.
    assert "12.5% of the rows" in many.what
    assert "8 of 64 rows a round" in many.evidence[0].says
    only_late = {name: values for name, values in failing(0, 8).items() if not name.endswith("/errors")}
    assert "8 of 64 rows a round" in found(only_late, kind="reward_errors")[0].evidence[0].says
    (late,) = found(failing(1, 1), kind="reward_errors")
    assert late.changes[0].words == "rewards.judge.timeout_s=off"
    assert found(failing(1), kind="reward_errors") == []
    assert found(failing(0), kind="reward_errors") == []
