"""What is found of what comes of a run, each with a log beside it that must not trigger."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from rlhf_cli.analysis.diagnosis.finding import RunSetup
from rlhf_cli.analysis.diagnosis.logged import Curve
from rlhf_cli.analysis.diagnosis.outcome_findings import _of_thirds
from tests.support.planted_logs import GRPO, PPO, found, noisy, reward, seen, told

A = reward("a", mean=noisy(0.2, 0.8, 0.02))
SPREAD = {"reward_std": [0.5] * 40}


def test_non_finite() -> None:
    (finding,) = found({"loss": [*[0.1] * 30, None], **A}, kind="non_finite")
    assert finding.severity == "serious"
    assert "loss was no finite number" in finding.what
    (skipped,) = found({"loss": [0.1] * 40, "grad_norm": [*[1.0] * 37, *[None] * 3], **A}, kind="non_finite")
    assert "grad_norm" in skipped.what


def test_negative_control_finite() -> None:
    """One gradient in 40 that overflows is fp16's way; a reward that did not apply is null and no NaN of training."""
    assert found({"loss": [0.1] * 40, "grad_norm": [None, *[1.0] * 39], **A}, kind="non_finite") == []
    assert found({"loss": [0.1] * 40, "rewards/a/mean": [None] * 40}, kind="non_finite") == []


def test_no_deviation() -> None:
    name = "frac_reward_zero_std"
    total = {"reward": noisy(0.5, 0.5, 0.02), **SPREAD, **A}
    (half,) = found({name: noisy(0.6, 0.6, 0.05), **total}, kind="no_deviation")
    assert half.severity == "warning"
    (nearly_all,) = found({name: [0.95] * 40, **total}, kind="no_deviation")
    assert nearly_all.severity == "serious"
    learned = {**total, "reward": noisy(0.0, 1.0, 0.02)}
    (note,) = found({name: noisy(0.0, 1.0, 0.02), **learned}, kind="no_deviation")
    assert note.severity == "note"


def test_groups_without_deviation_are_found_where_the_rows_have_none_that_is_logged() -> None:
    """Of one row a round there is no deviation: null, and whether the total rose by one cannot be said."""
    curves = {"frac_reward_zero_std": [1.0] * 20, "reward": noisy(0.1, 0.9, 0.0, n=20), "reward_std": [None] * 20, **A}
    (finding,) = found(curves, kind="no_deviation")
    assert finding.severity == "serious"
    risen = {**curves, "reward_std": [0.1] * 20}
    assert [one.severity for one in found(risen, kind="no_deviation")] == ["note"]


def test_negative_control_deviation() -> None:
    assert found({"frac_reward_zero_std": noisy(0.4, 0.4, 0.05), **A}, kind="no_deviation") == []
    assert found({"frac_reward_zero_std": noisy(0.9, 0.1, 0.02), **A}, kind="no_deviation") == []
    assert found(A, PPO, kind="no_deviation") == []


def watched(gold: list[float], total: list[float]) -> dict[str, list[float | None]]:
    n = len(gold)
    return {**reward("gold", mean=gold, weight=[0.0] * n), **A, "reward": total, "reward_std": [0.5] * n}


def test_overoptimised() -> None:
    """The gold rises for ten events and falls by its whole deviation, 0.5, in the thirty that follow."""
    gold = [*noisy(0.5, 0.8, 0.03, n=10), *noisy(0.8, 0.3, 0.03, n=30)]
    (finding,) = found(watched(gold, noisy(0.0, 1.0, 0.05)), PPO, kind="overoptimised")
    assert finding.subject == "rewards/gold/mean"
    assert finding.severity == "serious"
    words = [change.words for change in finding.changes]
    assert words[0] == "kl.coef=0.15"
    (steps,) = [int(word.rpartition("=")[2]) for word in words if "max_steps" in word]
    assert 8 <= steps <= 16


def test_it_would_end_with_its_best_tenth() -> None:
    """A tenth of 40 events is four, and the gold is at its best in those of the steps 21 to 24."""
    gold = [*noisy(0.5, 0.5, 0.02, n=20), *[0.95] * 4, *noisy(0.8, 0.2, 0.02, n=16)]
    (finding,) = found(watched(gold, noisy(0.0, 1.0, 0.05)), PPO, kind="overoptimised")
    assert "trainer.args.max_steps=24" in [change.words for change in finding.changes]


def test_a_fall_by_a_fifth_of_a_rows_deviation_is_worth_saying() -> None:
    """From 0.5 to 0.4, where rows deviate by 0.5; what is said begins at a tenth, 0.05."""
    (finding,) = found(watched(noisy(0.5, 0.4, 0.003), noisy(0.0, 1.0, 0.05)), PPO, kind="overoptimised")
    assert finding.first_step == 1


def test_overoptimised_by_an_evaluation() -> None:
    held_out = {"eval_sampled/total": noisy(0.8, 0.3, 0.02), "reward": noisy(0.0, 1.0, 0.05), **SPREAD, **A}
    (finding,) = found(held_out, GRPO, kind="overoptimised")
    assert finding.subject == "eval_sampled/total"
    rows = {"eval_loss": noisy(0.6, 0.9, 0.02), "loss": noisy(0.7, 0.2, 0.02)}
    (overfit,) = found(rows, RunSetup(trainer="reward"), kind="overoptimised")
    assert "eval_loss rises" in overfit.what


@pytest.mark.parametrize(
    ("gold", "total"),
    [
        (noisy(0.5, 0.8, 0.03), noisy(0.0, 1.0, 0.05)),
        (noisy(0.5, 0.5, 0.1), noisy(0.0, 1.0, 0.05)),
        (noisy(0.8, 0.3, 0.03), noisy(1.0, 0.0, 0.05)),  # both fall: something else is wrong
        (noisy(0.5, 0.47, 0.003), noisy(0.0, 1.0, 0.05)),  # real, and less than a tenth of a row's deviation
    ],
)
def test_negative_control_not_overoptimised(gold: list[float], total: list[float]) -> None:
    assert found(watched(gold, total), PPO, kind="overoptimised") == []


def test_nothing_is_learned() -> None:
    (flat,) = found({"reward": noisy(0.5, 0.5, 0.02), **SPREAD, **A}, kind="learning")
    assert "does not rise" in flat.what
    (worse,) = found({"reward": noisy(0.5, 0.2, 0.02), **SPREAD, **A}, kind="learning")
    assert "gets worse" in worse.what
    (loss,) = found({"loss": noisy(0.693, 0.693, 0.002)}, RunSetup(trainer="dpo"), kind="learning")
    assert "the loss does not fall" in loss.what


def test_negative_control_learning() -> None:
    assert found({"reward": noisy(0.2, 0.8, 0.05), **SPREAD, **A}, kind="learning") == []
    assert found({"reward": noisy(0.5, 0.5, 0.02), **SPREAD, **A}, max_steps=100, kind="learning") == []
    assert found({"loss": noisy(0.693, 0.4, 0.02)}, RunSetup(trainer="dpo"), kind="learning") == []
    moving = {**A, "rewards/a/weight": noisy(1.0, 0.0, 0.0)}
    assert found({"reward": noisy(0.5, 0.2, 0.02), **SPREAD, **moving}, kind="learning") == []


def test_what_is_lost_in_noise_is_said_to_be() -> None:
    """Noise of 0.6 on 40 events: the change is known to 0.9 or so, and 0.05 is asked for."""
    diagnosis = seen({"reward": noisy(0.5, 0.5, 0.6), **SPREAD, **A}, kind="learning")
    assert not diagnosis.findings
    assert "cannot be told from noise" in diagnosis.unseen[0].why


def test_the_error_of_two_thirds_is_scipys() -> None:
    values = np.random.default_rng(4).standard_normal(31)
    first, last = (stats.sem(part, ddof=0) for part in (values[:10], values[-10:]))
    found = _of_thirds(Curve("x", np.arange(31.0), values))
    assert found == pytest.approx(np.hypot(first, last))


@pytest.mark.parametrize(
    ("args", "generations"),
    [
        ({}, None),
        ({"per_device_train_batch_size": 16}, 16),
        ({"num_generations": 4}, 8),
        ({"num_generations": 4, "per_device_train_batch_size": 12}, None),
        ({"num_generations": 2, "per_device_train_batch_size": 12}, 4),
    ],
)
def test_larger_groups_are_tried_where_they_fit_a_batch(args: dict[str, object], generations: int | None) -> None:
    """TRL's defaults are 8 generations and 8 rows; twice the generations must divide the rows."""
    said = told({"frac_reward_zero_std": [0.5] * 10}, RunSetup(trainer="grpo", args=args), kind="no_deviation")  # type: ignore[arg-type]
    larger = [] if generations is None else [f"  try trainer.args.num_generations={generations}"]
    assert said.splitlines()[2:] == [*larger, "  try trainer.args.temperature=1.2"]
