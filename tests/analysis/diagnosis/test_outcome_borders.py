"""What comes of a run, and its critic, on both sides of every border of docs/how-to/diagnosis.md; told word by word."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rlhf_cli.analysis.diagnosis.finding import RunSetup
from tests.support.planted_logs import GRPO, PPO, Values, noisy, reward, told, verdict

Curves = dict[str, Values]
DPO = RunSetup(trainer="dpo")


def line(start: float, end: float, n: int = 20) -> list[float]:
    return [float(value) for value in np.linspace(start, end, n)]


@pytest.mark.parametrize(
    ("curves", "expected"),
    [
        ({"loss": [0.1]}, "fine"),
        ({"eval_loss": [1.0]}, "unseen"),
        ({"grad_norm": [None] + [1.0] * 19}, "fine"),  # one of twenty
        ({"grad_norm": [None] + [1.0] * 18}, "serious"),
        *(({name: [0.5, None, 0.5], "lr": [1.0] * 40}, "serious") for name in (
            "loss", "ppo/policy_loss", "ppo/value_loss", "kl", "kl/k1_policy_ref", "entropy")),
        ({"reward": [None] * 3}, "fine"),
    ],
)  # fmt: skip
def test_non_finite(curves: Curves, expected: str) -> None:
    assert verdict(curves, kind="non_finite") == expected


def test_non_finite_is_told_by_the_event() -> None:
    curves: Curves = {"loss": [0.1, None, float("inf")], "grad_norm": [None, 1.0, 1.0], "learning_rate": [0.03] * 3}
    assert told(curves, DPO, kind="non_finite").splitlines() == [
        "serious : loss and grad_norm were no finite number @ 0-3",
        "  loss: null in 2 of 3 log events",
        "  grad_norm: null in 1 of 3 log events",
        "  try trainer.args.learning_rate=0.01",
        "  try trainer.args.max_grad_norm=0.5",
    ]
    assert told({"loss": [0.1] * 3}, kind="non_finite") == "fine: losses and gradients were finite in 3 log events"


ZERO = "frac_reward_zero_std"


@pytest.mark.parametrize(
    ("curves", "expected"),
    [
        ({ZERO: [1.0] * 9}, "unseen"),
        ({ZERO: [0.0] * 10 + [0.5] * 10}, "warning"),
        ({ZERO: [1.0] * 10 + [0.4375] * 10}, "fine"),
        ({ZERO: [0.875] * 10}, "warning"),
        ({ZERO: [0.9] * 10}, "serious"),
        ({ZERO: [1.0] * 20, "reward_std": [0.5] * 4 + [9.0] * 16, "reward": [0.0] * 16 + [0.5] * 4}, "serious"),
        ({ZERO: [1.0] * 20, "reward_std": [0.5] * 4 + [9.0] * 16, "reward": [0.0] * 16 + [0.625] * 4}, "note"),
        ({ZERO: [1.0] * 20, "reward_std": [0.5] * 20, "reward": [0.0] * 4 + [9.0] * 12 + [0.625] * 4}, "note"),
        ({ZERO: [1.0] * 20, "reward_std": [0.5] * 20, "reward": [0.0] * 4 + [9.0] * 12 + [0.0] * 4}, "serious"),
        ({ZERO: [1.0] * 20, "reward_std": [0.5] * 20, "reward": [0.0] * 17 + [0.625] * 3}, "serious"),  # 15/32
        ({ZERO: [1.0] * 20, "reward_std": [0.5] * 20, "reward": [0.0] * 8 + [9.0]}, "serious"),  # nine events
        ({ZERO: [1.0] * 20, "reward_std": [0.5] * 20, "reward": [0.0] * 8 + [9.0] * 2}, "note"),
        ({ZERO: [1.0] * 20, "reward_std": [0.5], "reward": [0.0] * 8 + [9.0] * 2}, "note"),  # one spread will do
    ],
)
def test_no_deviation(curves: Curves, expected: str) -> None:
    assert verdict(curves, kind="no_deviation") == expected


def test_no_deviation_is_told() -> None:
    curves = {ZERO: [1.0] * 20, "reward_std": [0.25] * 20, "reward": [0.0] * 10 + [1.0] * 10}
    assert told(curves, kind="no_deviation").splitlines() == [
        "note : in 100% of the groups all completions have the same total: they teach nothing; the total has risen, so "
        "the task may be learned @ 11-20",
        f"  {ZERO}: 1 on average over steps 11 to 20",
        "  reward: 0 -> 1, steps 1 to 20",
        "  try trainer.args.temperature=1.2",
    ]
    sixteen = replace(GRPO, args={"num_generations": 8, "per_device_train_batch_size": 16})
    assert told(curves, sixteen, kind="no_deviation").splitlines()[-2:] == [
        "  try trainer.args.num_generations=16",
        "  try trainer.args.temperature=1.2",
    ]
    assert told({ZERO: [0.25] * 10}, kind="no_deviation") == (
        "fine: groups without deviation: 0.25 on average over steps 6 to 10"
    )
    assert told({"loss": [0.1]}, PPO, kind="no_deviation") == "unseen: ppo/advantages_std is not logged"
    rounds = {"ppo/advantages_std": [0.0, 0.2], "ppo/advantages_mean": [0.0, 0.0]}
    assert told(rounds, PPO, kind="no_deviation").startswith("warning : in 1 of 2 rounds every advantage was 0")
    rounds["ppo/advantages_std"] = [0.1, 0.2]
    assert told(rounds, PPO, kind="no_deviation") == "fine: each of 2 rounds had advantages"
    assert told({"loss": [0.1]}, GRPO, kind="no_deviation") == f"unseen: {ZERO} is not logged"


def watched(gold: Values, total: Values, std: float = 0.5) -> Curves:
    n = len(gold)
    return {**reward("gold", mean=gold, std=std, weight=[0.0] * n), "reward": total, "reward_std": [9.0] * n}


@pytest.mark.parametrize(
    ("curves", "expected"),
    [
        (watched(line(0.5, 0.0, 11), line(0, 1, 11)), "unseen"),
        (watched(line(0.5, 0.0, 12), line(0, 1, 12)), "serious"),
        # By a tenth of a deviation of 1/2.
        (watched(line(0.5, 0.451), line(0, 1)), "fine"),
        (watched(line(0.5, 0.449), line(0, 1)), "serious"),
        (watched(line(0.5, 0.0), line(1, 0)), "fine"),
        (watched(line(0.5, 0.0), [0.5] * 20), "fine"),
        # What is trained on is compared over the last and the first three tenths.
        (watched(line(0.5, 0.0), [0.5] * 14 + [0.75] * 6), "serious"),
        (watched(line(0.5, 0.0), [0.75] * 6 + [1.0] * 7 + [0.0] + [0.75] * 6), "fine"),
        (watched(line(0.5, 0.0, 12), [0.75] * 4 + [0.0] * 4 + [0.75] * 4), "fine"),
        (watched(line(0.5, 0.0, 12), [0.5] * 4 + [1.0] * 4 + [0.75] * 4), "serious"),
        (watched(line(0.5, 0.0), [0.0] * 9 + [1.0]), "serious"),
        (watched(line(0.5, 0.0), [0.0] * 8 + [1.0]), "fine"),  # nine events are too few
        ({"eval_reward": line(0.5, 0.0, 9), "reward": line(0, 1)}, "unseen"),
        ({"eval_reward": line(0.5, 0.0, 10), "reward": line(0, 1)}, "serious"),
        ({"eval_reward": line(0.5, 0.495), "reward": line(0, 1)}, "serious"),  # of no deviation at all
        ({"eval_greedy/total": line(0.5, 0.0), "reward": line(0, 1)}, "serious"),
        ({"eval_sampled/total": line(0, 0.5), "eval_greedy/total": line(0.5, 0), "reward": line(0, 1)}, "fine"),
        ({"eval_loss": line(0.5, 1.0, 9), "loss": line(1, 0)}, "unseen"),
        ({"eval_loss": line(0.5, 1.0, 10), "loss": line(1, 0)}, "serious"),
        ({"eval_loss": line(1.0, 0.5), "loss": line(1, 0)}, "fine"),
        ({"eval_loss": line(0.5, 1.0), "loss": line(0, 1)}, "fine"),
        # A tenth of its own mean: 1.95/20 and 2.05/20 and some.
        ({"eval_loss": line(0.95, 1.05), "loss": line(1, 0)}, "serious"),
        ({"eval_loss": line(0.96, 1.04), "loss": line(1, 0)}, "fine"),
        ({"loss": line(1, 0)}, "unseen"),
    ],
)
def test_overoptimised(curves: Curves, expected: str) -> None:
    assert verdict(curves, DPO, kind="overoptimised") == expected


def test_a_fall_is_looked_for_from_the_whole_run_to_its_last_half() -> None:
    """Up and down again: over the last three quarters or the last half it falls, over all it does not."""
    rises = line(0, 1, 40)
    for gold, first in (
        (line(1, 0, 40), 1),
        ([*line(0.0, 1.0, 10), *line(1.0, 0.125, 30)], 11),
        ([*line(0.0, 1.0, 20), *line(1.0, 0.25, 20)], 21),
    ):
        said = told(watched(gold, rises), PPO, kind="overoptimised")
        assert (
            f"rewards/gold/mean falls from step {first} on while reward, which is trained on, rises @ {first}-40"
            in said
        )
    late = [*line(0.0, 1.0, 30), *line(1.0, 0.75, 10)]
    assert verdict(watched(late, rises), PPO, kind="overoptimised") == "fine"


def test_overoptimised_is_told_with_where_it_was_best() -> None:
    gold = [0.5, 0.875, 1.0, *line(0.75, 0.0, 17)]
    assert told(watched(gold, line(0, 1)), PPO, kind="overoptimised").splitlines() == [
        "serious rewards/gold/mean: rewards/gold/mean falls from step 1 on while reward, which is trained on, rises "
        "@ 1-20",
        "  rewards/gold/mean: 0.688 -> 0.0234, steps 1 to 20",
        "  reward: 0.0263 -> 0.974, steps 1 to 20",
        "  try kl.coef=0.15",
        "  try trainer.args.max_steps=3",
        "  try trainer.args.learning_rate=0.00033",
    ]
    curves = watched(gold, line(0, 1))
    for setup, words in (
        (replace(PPO, kl_coef=0.01), "kl.coef=0.1"),
        (replace(PPO, kl_coef=None), "kl.coef=0.1"),
        (GRPO, "trainer.args.beta=0.04"),
        (replace(GRPO, trainer="rloo", args={"beta": 0.5}), "trainer.args.beta=1.5"),
    ):
        assert f"\n  try {words}\n" in told(curves, setup, kind="overoptimised")
    assert told(curves, DPO, kind="overoptimised").splitlines()[3:] == ["  try trainer.args.max_steps=3"]
    two = {**watched([0.5] * 4, line(0, 1)), **reward("best", mean=line(0.5, 0), weight=[0.0] * 20)}
    assert [text.split()[0] for text in told(two, DPO, kind="overoptimised").splitlines() if text[0] != " "] == [
        "unseen:", "serious",
    ]  # fmt: skip


def total(values: Values, std: float = 0.5, rows: float = 8.0) -> Curves:
    n = len(values)
    return {"reward": values, "reward_std": [std] * n, **reward("a", mean=values, calls=[rows] * n)}


NOISE = [0.015625, -0.015625] * 10


def with_noise(values: list[float]) -> list[float]:
    return [float(one) for one in np.add(values, NOISE[: len(values)])]


@pytest.mark.parametrize(
    ("curves", "max_steps", "expected"),
    [
        (total([0.5] * 11), None, "unseen"),
        (total([0.5] * 12), None, "serious"),
        (total([0.5] * 12), 24, "serious"),
        (total([0.5] * 12), 25, "unseen"),
        # By a fifth of a deviation of 1/2: 0.1. A third less than it is no rise; any line that surely rises is.
        (total([0.0] * 8 + [0.125] * 4), None, "fine"),
        (total(line(0, 0.05)), None, "fine"),
        (total(with_noise([0.5] * 20)), None, "serious"),
        # A rise by 0.2 that is less than five standard errors of its own scatter, and a bend too small to count.
        (total([0.0, 1.0] * 5 + [0.2, 1.1] * 5), None, "unseen"),
        (total([0.5] * 10 + [0.2] * 3 + [0.55] * 10), None, "unseen"),
        (total([0.5, 0.5, 0.75, 0.25, 0.5, 0.5] * 3), None, "unseen"),
        # 1.5 times 0.1, and five of what 8 rows an event leave to chance: of 20 events and deviations of 1/2 0.48.
        (total([1.0] * 10 + [0.5] * 10), None, "serious"),
        (total([0.5] * 10 + [0.0, 1.0] * 5), None, "unseen"),
        ({**total([0.5] * 20), "rewards/a/weight": [1.0, 2.0] * 10}, None, "unseen"),
        ({**total([0.5] * 20), **reward("b", mean=[0.5] * 20, weight=[1.0, 2.0] * 10)}, None, "unseen"),
        ({"loss": [0.5] * 11}, None, "unseen"),
        ({"loss": [0.5] * 12}, None, "serious"),
        ({"loss": line(0.5, 0.4)}, None, "fine"),
        ({"loss": line(0.4, 0.5)}, None, "serious"),
        # Two in a hundred of where it began.
        ({"loss": [1.0] * 8 + [0.97] * 4}, None, "fine"),
        ({"loss": with_noise([4.0] * 20)}, None, "serious"),
    ],
)
def test_learning(curves: Curves, max_steps: int | None, expected: str) -> None:
    assert verdict(curves, max_steps=max_steps, kind="learning") == expected


def test_learning_is_told_with_what_is_to_be_changed() -> None:
    flat = told(total([0.5] * 20), kind="learning").splitlines()
    assert flat == [
        "serious : the total does not rise: 0.5 -> 0.5, steps 1 to 20; by less than 0.1 in any case @ 1-20",
        "  reward: 0.5 -> 0.5, steps 1 to 20; the change lies between 0 and 0",
        "  try trainer.args.learning_rate=0.003",
        "  try debug=overfit",
    ]
    loss = told({"loss": [0.5] * 20, "learning_rate": [0.5, 2.0]}, DPO, kind="learning").splitlines()
    assert (
        loss[0] == "serious : the loss does not fall: 0.5 -> 0.5, steps 1 to 20; by less than 0.01 in any case @ 1-20"
    )
    assert loss[2:] == ["  try trainer.args.learning_rate=6", "  try debug=overfit_rows"]
    moving = told({**total([0.5] * 20), "rewards/a/weight": [1.0, 2.0] * 10}, kind="learning")
    assert moving == "unseen: a weight moves: the total does not say what is learned"
    hidden = told(total(noisy(0.5, 0.5, 0.6, n=20)), kind="learning")
    assert hidden.startswith("unseen: reward: ")
    assert hidden.endswith("; that cannot be told from noise")
    wanders = told(total([0.5] * 5 + [0.9] * 5 + [0.2] * 5 + [0.6] * 5), kind="learning")
    assert wanders.endswith("; it wanders too much to say whether it rises")


@pytest.mark.parametrize(("rows", "expected"), [(64.0, "serious"), (16.0, "unseen")])
def test_a_total_that_falls_is_held_against_what_sampling_makes_of_it(rows: float, expected: str) -> None:
    """Three levels of four events whose first is 1/2 above the last, rows that deviate by 1: 64 rows an event, 256 a
    third, leave 5 sqrt(2 / 256) = 0.44 to chance, 16 rows 0.88."""
    values = [0.75] * 4 + [1.0] * 4 + [0.25] * 4
    curves = total(values, std=1.0, rows=rows)
    assert verdict(curves, kind="learning") == expected
    saved = {name.replace("/calls", "/calls_saved"): each for name, each in curves.items()}
    assert verdict({**saved, **reward("b", mean=values, calls=[4.0] * 12)}, kind="learning") == expected
