"""Severity, subject, figures and advice of findings, which `rlhf check` accepts; noise without a fault gives none."""

from __future__ import annotations

import functools
import re
import shlex
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from rlhf_cli.analysis.diagnosis.logged import Curve, RunSetup
from rlhf_cli.analysis.diagnosis.policy_findings import _error_of_thirds
from rlhf_cli.errors import UserError
from rlhf_cli.plan.preflight import preflight
from rlhf_cli.plan.prepare import prepare
from rlhf_cli.tables.metrics import FINDING_KINDS
from tests.analysis.diagnosis.test_borders import (
    CLIPPED,
    CUT,
    DPO,
    EXPLAINED,
    FALLEN,
    FLAT,
    GATED,
    KL,
    LENGTH,
    VALUE,
    ZERO,
    Curves,
    alike,
    judge,
    line,
    parts,
    shares,
    total,
    watched,
)
from tests.support.planted_logs import GRPO, PPO, found, noisy, results, reward, verdict, words

GOLD = [0.5, 0.875, 1.0, *line(0.75, 0.0, 17)]
FAR = {KL: line(0.0, 0.5, 16) + [1.25] * 4}
CRITIC = {VALUE: [*[1.0] * 5, *line(0.25, 1.0, 15)], "ppo/returns_std": [1.0] * 15 + [1.25] * 5}
SLOW = {"time/elapsed_s": [100.0] * 3, "time/share/reward/a": [0.5] * 3, "time/share/backward": [0.5] * 3}
EMPTY = {CUT: [0.0] * 10, "completions/max_length": [1.0] * 10}
CUT_OFF = {"ppo/advantages_std": [0.0, 0.2, 0.2, 0.2], "ppo/advantages_mean": [0.0] * 4, CUT: [1.0, 0.5, 0.5, 0.5]}
"""The first of four rounds had no advantages, and all of its completions were truncated."""
PLANTED: list[tuple[str, RunSetup, Curves]] = [
    ("non_finite", DPO, {"loss": [0.1, None, np.inf], "grad_norm": [None, 1.0, 1.0], "learning_rate": [0.03] * 3}),
    ("no_deviation", GRPO, {ZERO: [1.0] * 20, "reward_std": [0.25] * 20, "reward": [0.0] * 10 + [1.0] * 10}),
    ("no_deviation", replace(GRPO, args={"temperature": 1.5}), {ZERO: [1.0] * 20}),
    ("non_finite", replace(DPO, args={"max_grad_norm": 0.1}), {"loss": [0.1, None]}),
    ("non_finite", replace(DPO, args={"max_grad_norm": 0}), {"loss": [0.1, None]}),
    ("no_deviation", PPO, {"ppo/advantages_std": [0.0, 0.2], "ppo/advantages_mean": [0.0, 0.0]}),
    ("no_deviation", replace(PPO, truncation="bootstrap", args={"max_completion_length": 4}), CUT_OFF),
    ("overoptimised", PPO, watched(GOLD, line(0, 1))),
    ("learning", GRPO, total([0.5] * 20)),
    ("learning", DPO, {"loss": [0.5] * 20, "learning_rate": [0.5, 2.0]}),
    ("learning", GRPO, total([1.0] * 10 + [0.5] * 10)),
    ("kl", PPO, FAR),
    ("kl", DPO, {KL: parts(0, 0, 0, 0, 0.125, 0.5)}),
    ("truncation", GRPO, {CUT: [0.75] * 10}),
    ("truncation", RunSetup(truncation="bootstrap", args={"max_completion_length": 64}), {CUT: [0.75] * 10}),
    ("truncation", GRPO, {CUT: line(0.0, 0.38)}),
    ("length", GRPO, {LENGTH: line(20, 35), **FLAT}),
    ("entropy", GRPO, {"entropy": FALLEN, "reward": [0.5] * 20}),
    ("clipping", PPO, {CLIPPED: [0.0] * 10 + [0.5] * 10}),
    ("clipping", PPO, {CLIPPED: [0.0] * 12}),
    ("explained_variance", PPO, {EXPLAINED: [-0.5] * 20, "critic/learning_rate": [0.5, 2.0, 1.0]}),
    ("value_loss", PPO, {**CRITIC, "critic/learning_rate": [0.25, 0.75]}),
    ("reward_errors", GRPO, judge(4.0, 1.0)),
    ("gate", GATED, {"rewards/style/open_fraction": [0.0] * 10, "rewards/runs/mean": [0.25] * 10}),
    ("gate", GATED, {"rewards/style/open_fraction": [1.0] * 12}),
    ("redundant", GRPO, alike([0.0] * 10 + [-1.0] * 10, a=2.0)),
    ("time", GRPO, {**SLOW, "rewards/a/seconds": [12.5] * 3}),
]
EXPECTED = """
serious @ 0-3 | loss, grad_norm |  | learning_rate=0.01, max_grad_norm=0.5
note @ 11-20 | frac_reward_zero_std, reward | 100% | temperature=1.2
serious @ 11-20 | frac_reward_zero_std | 100% | temperature=1.8
serious @ 0-2 | loss |  | max_grad_norm=0.05
serious @ 0-2 | loss |  | max_grad_norm=0.5
warning @ 1-2 | ppo/advantages_std | 1, 2, 0 |
note @ 1-4 | ppo/advantages_std, rewards/truncation/fraction | 1, 4, 0 | max_completion_length=8, truncation=eos_penalty
serious rewards/gold/mean @ 1-20 | rewards/gold/mean, reward | 1 | kl.coef=0.15, max_steps=3, learning_rate=0.00033
serious @ 1-20 | reward | 0.5, 0.5, 1, 20, 0.1 | learning_rate=0.003, debug=overfit
serious @ 1-20 | loss | 0.5, 0.5, 1, 20, 0.01 | learning_rate=6, debug=overfit_rows
serious @ 1-20 | reward | 1, 0.5, 1, 20 | learning_rate=0.00033
warning @ 1-20 | kl/k1_policy_ref | 1.2 | kl.coef=0.15, learning_rate=0.00033
warning @ 1-12 | kl/k1_policy_ref | 0, 0, 0.31 |
warning @ 1-10 | rewards/truncation/fraction | 75%, 32 | max_completion_length=64, truncation=eos_penalty
warning @ 1-10 | rewards/truncation/fraction | 75%, 64 | max_completion_length=128, truncation.mode=replace
warning @ 1-20 | rewards/truncation/fraction | 12%, 38% | max_completion_length=64, truncation=eos_penalty
warning @ 1-20 | completions/mean_length | 75% | truncation=soft_overlong, beta=0.04, learning_rate=0.00033
serious @ 1-20 | entropy, reward | 1, 0.062 | temperature=1.2, beta=0.04, learning_rate=0.00033
warning @ 11-20 | ppo/clip_fraction | 50% | learning_rate=0.00033, num_iterations=1
note @ 1-12 | ppo/clip_fraction |  | learning_rate=0.003
warning @ 11-20 | ppo/explained_variance | -0.5, 11, 20 | critic.learning_rate=6, critic.warmup_steps=32
warning @ 1-20 | ppo/value_loss, ppo/returns_std | 2.5, 1.6 | critic.learning_rate=0.25, critic.max_grad_norm=0.5
warning judge @ 1-10 | rewards/judge/errors | 4.0%, 1.0% | rewards.judge.timeout_s=off, rewards.judge.on_error=raise
serious style @ 1-10 | rewards/style/open_fraction, rewards/runs/mean | 0.0% | rewards.style.gate=null
note style @ 1-12 | rewards/style/open_fraction |  | rewards.style.gate=null
warning a/b @ 11-20 | rewards/correlation/a/b | -1.00, 0.95, 100% | rewards.b.weight=0
note reward/a @ 1-3 | time/share/reward/a, rewards/a/seconds | 50% | rewards.a.isolate=true
""".strip().splitlines()
"""What each of `PLANTED` gives, see `results`."""
THIRD = {
    **reward("minus", mean=[0.5] * 20, std=[0.125] * 20, advantage_share=[0.0] * 20, weight=[-2.0] * 20),
    **reward("watched", mean=[0.5] * 20, advantage_share=[0.0] * 20, weight=[0.0] * 20),
}
DROWNED = {**shares([0.5] * 10 + [0.9375] * 10, [0.03125] * 20), **THIRD}
DEAD = {
    **reward("shut", mean=[0.5] * 10, std=0.0, open_fraction=[0.0] * 10),
    **reward("never", mean=[None] * 10, std=[None] * 10),
    **reward("same", mean=[0.25] * 10, std=0.0),
    **reward("short", mean=[0.25] * 4),
    **reward("one", mean=[0.25] * 10),
}


@pytest.mark.parametrize(
    ("planted", "expected"), list(zip(PLANTED, EXPECTED, strict=True)), ids=[row[0] for row in PLANTED]
)
def test_finding(planted: tuple[str, RunSetup, Curves], expected: str) -> None:
    kind, setup, curves = planted
    assert results(curves, setup, kind=kind) == [expected]


def test_a_length_that_bends_upwards_is_compared_with_one_token() -> None:
    """The line through 1 + k^2 / 4, k = 0 ... 19, rises by 19 / 4 an event, 90.25 in all, and starts at -13.25."""
    curves = {LENGTH: [1.0 + k**2 / 4 for k in range(20)]}
    (result,) = results(curves, kind="length")
    assert f"| {LENGTH} | 9025% |" in result


def test_each_dead_reward_has_a_finding() -> None:
    assert results(DEAD, kind="dead_reward") == [
        "serious same @ 1-10 | rewards/same/mean | 0.25 | rewards.same.weight=0, rlhf score RUN",
        "unseen",
        "serious never @ 0-10 | rewards/never/mean |  | rewards.never.weight=0, rlhf score RUN",
        "fine",
    ]
    for weight, learns in ((1.0, True), (0.0, False)):  # one that is only watched teaches nothing anyway
        (finding,) = found(reward("a", mean=[0.0] * 10, std=0.0, weight=[weight] * 10), kind="dead_reward")
        assert ("learns" in finding.what) is learns


def test_one_reward_shows_every_drowned_reward() -> None:
    metrics = [f"rewards/{name}" for name in ("big/advantage_share", "small/advantage_share", "small/std")]
    shown = ", ".join([*metrics, "rewards/minus/advantage_share", "rewards/minus/std"])
    # By its weight of -2, minus has half of the deviation of big in the total, so a third would be less.
    assert results(DROWNED, kind="one_reward") == [f"warning big @ 11-20 | {shown} | 0.94 | rewards.small.weight=0.33"]
    heavier = {**DROWNED, "rewards/big/weight": [-3.0] * 20, "rewards/big/std": [None] * 20}
    # The unlogged deviation counts as 1: a third of 3 is 1, twice the deviation of small.
    assert words(heavier, kind="one_reward") == ["rewards.small.weight=2", "rewards.minus.weight=-8"]


def test_redundant_pairs_have_a_finding_each() -> None:
    curves = alike([0.0] * 10 + [-1.0] * 10, a=2.0, c=1.0)
    curves |= {"rewards/correlation/a/c": [0.0] * 10 + [0.97] * 10, "rewards/correlation/b/c": [0.5] * 20}
    assert [line.split()[1] for line in results(curves, kind="redundant")] == ["a/b", "a/c"]
    moving = {**alike([1.0] * 20, b=1.5), "rewards/a/weight": [1.0, 3.0] * 10}
    assert words(moving, kind="redundant") == ["rewards.a.weight=0"]  # a changing weight counts as 1
    for weight, lighter in ((-0.3, "b"), (3.0, "a"), (-3.0, "a")):
        assert words(alike([1.0] * 20, b=weight), kind="redundant") == [f"rewards.{lighter}.weight=0"]
    assert verdict(alike([1.0] * 20, b=0.0), kind="redundant") == "fine"
    only_one = {**alike([1.0] * 20), "rewards/b/std": [0.5] * 10 + [0.0] * 10}
    assert verdict(only_one, kind="redundant") == "fine"


@pytest.mark.fault(38)
@pytest.mark.parametrize(("longest", "expected"), [(1.0, "serious"), (2.0, "fine")])
def test_completions_with_only_an_end_token_are_empty(longest: float, expected: str) -> None:
    assert verdict({**EMPTY, "completions/max_length": [longest] * 10}, kind="truncation") == expected


def critic_of(**sections: object) -> RunSetup:
    """Return the setup of a run of PPO with these sections in its configuration."""
    return RunSetup.of({"trainer": {"name": "ppo", "baseline": "critic", "args": {"learning_rate": 0.3}}, **sections})


def grouped(**args: object) -> RunSetup:
    return RunSetup.of({"trainer": {"args": {"per_device_train_batch_size": 16, **args}}})


NO_BETA, LOW_BETA = replace(PPO, values={}), replace(GRPO, args={"beta": 0.01, "learning_rate": True})
RLOO, SAME, RATED = replace(GRPO, trainer="rloo", args={"beta": 0.5}), {ZERO: [1.0] * 20}, {"learning_rate": [2.0]}
OVER, LONGER = watched(GOLD, line(0, 1)), {LENGTH: line(20, 35), **FLAT}


@pytest.mark.parametrize(
    ("kind", "setup", "curves", "advice"),
    [
        ("no_deviation", grouped(), SAME, "num_generations=16 temperature=1.2"),
        ("no_deviation", grouped(eval_strategy="steps"), SAME, "temperature=1.2"),
        ("no_deviation", grouped(eval_strategy="steps", num_generations_eval=4), SAME,
         "num_generations=16 temperature=1.2"),
        ("kl", replace(PPO, values={"kl.coef": 0.01}), FAR, "kl.coef=0.05 learning_rate=0.00033"),
        ("kl", NO_BETA, FAR, "kl.coef=0.05 learning_rate=0.00033"),
        ("kl", GRPO, FAR, "beta=0.04 learning_rate=0.00033"),
        ("kl", RLOO, FAR, "beta=1.5"),
        ("kl", LOW_BETA, FAR, "beta=0.04"),
        ("kl", DPO, {**FAR, "learning_rate": [3.0, 6.0]}, "learning_rate=2"),  # DPO's beta is no penalty
        ("kl", critic_of(kl={"where": "none", "coef": 0.05}), FAR, "learning_rate=0.1"),
        ("kl", critic_of(kl={"where": "loss", "coef": 0.05}), FAR, "kl.coef=0.15 learning_rate=0.1"),
        ("overoptimised", NO_BETA, OVER, "kl.coef=0.1 max_steps=3 learning_rate=0.00033"),
        ("overoptimised", RLOO, OVER, "beta=1.5 max_steps=3"),
        ("overoptimised", LOW_BETA, OVER, "beta=0.04 max_steps=3"),
        ("overoptimised", DPO, OVER, "max_steps=3"),
        ("entropy", PPO, {"entropy": FALLEN, "reward": [0.5] * 20}, "kl.coef=0.15 learning_rate=0.00033"),
        ("clipping", replace(PPO, args={"num_iterations": 1}), {CLIPPED: [0.5] * 20}, ""),
        ("clipping", replace(PPO, args={"num_iterations": 2}), {CLIPPED: [0.0] * 12, **RATED}, "learning_rate=6"),
        ("reward_errors", GRPO, judge(4.0, 0.5), "rewards.judge.on_error=raise"),
        ("truncation", RunSetup.of({"truncation": {"policy": "bootstrap", "mode": "replace"}}), {CUT: [0.75] * 10},
         "max_completion_length=512"),
        ("length", critic_of(truncation={"policy": "soft_overlong"}), LONGER, "kl.coef=0.05 learning_rate=0.1"),
        ("length", critic_of(), {LENGTH: line(20, 5), **FLAT}, "kl.coef=0.05 learning_rate=0.1"),
        ("dead_reward", RunSetup.of({"rewards": {"a": {"weight": 0.0}}}),
         reward("a", mean=[0.0] * 10, std=0.0, weight=[0.0] * 10), "rlhf score RUN"),
        ("explained_variance", critic_of(critic={"warmup_steps": 100}), {EXPLAINED: [-0.5] * 20},
         "critic.learning_rate=1e-4 critic.warmup_steps=200"),
        ("value_loss", critic_of(critic={"max_grad_norm": 0.2}), CRITIC, "critic.max_grad_norm=0.1"),
    ],
)  # fmt: skip
def test_advice_changes_a_value_that_the_run_reads(kind: str, setup: RunSetup, curves: Curves, advice: str) -> None:
    """Arguments of TRL are written without their section."""
    assert " ".join(word.removeprefix("trainer.args.") for word in words(curves, setup, kind=kind)) == advice


@pytest.mark.parametrize(
    ("kind", "setup", "curves", "expected"),
    [
        ("gate", GRPO, {"rewards/style/open_fraction": [0.0] * 10}, "fine"),
        ("clipping", replace(PPO, args={}), {CLIPPED: [0.0] * 12}, "fine"),  # every rollout is used once
        ("no_deviation", PPO, {"ppo/advantages_std": [0.1, 0.2], "ppo/advantages_mean": [0.0] * 2}, "fine"),
        ("no_deviation", PPO, {"loss": [0.1]}, "unseen"),
    ],
)
def test_no_finding(kind: str, setup: RunSetup, curves: Curves, expected: str) -> None:
    assert verdict(curves, setup, kind=kind) == expected


@pytest.mark.parametrize(
    ("gold", "first"),
    [
        (line(1, 0, 40), 1),
        ([*line(0.0, 1.0, 10), *line(1.0, 0.125, 30)], 11),
        ([*line(0.0, 1.0, 20), *line(1.0, 0.25, 20)], 21),
        ([*line(0.0, 1.0, 30), *line(1.0, 0.75, 10)], None),
    ],
)
def test_a_fall_is_searched_in_the_run_its_last_three_quarters_and_half(gold: list[float], first: int | None) -> None:
    (result,) = results(watched(gold, line(0, 1, 40)), PPO, kind="overoptimised")
    assert result == "fine" if first is None else f" @ {first}-40 | " in result
    two = {**watched([0.5] * 4, line(0, 1)), **reward("best", mean=line(0.5, 0), weight=[0.0] * 20)}
    assert [line.split()[0] for line in results(two, DPO, kind="overoptimised")] == ["unseen", "serious"]


@pytest.mark.parametrize(("rows", "expected"), [(64.0, "serious"), (16.0, "unseen")])
def test_a_falling_total_is_compared_with_the_error_of_sampling(rows: float, expected: str) -> None:
    """Three levels of four events, the last 1/2 below the first, and rows that deviate by 1: 64 rows per event, 256 per
    third, give five standard errors of 5 sqrt(2 / 256) = 0.44; 16 rows give 0.88."""
    values = [0.75] * 4 + [1.0] * 4 + [0.25] * 4
    curves = total(values, std=1.0, rows=rows)
    assert verdict(curves, kind="learning") == expected
    saved = {name.replace("/calls", "/calls_saved"): each for name, each in curves.items()}
    assert verdict({**saved, **reward("b", mean=values, calls=[4.0] * 12)}, kind="learning") == expected


@functools.cache
def advice_by_key() -> dict[tuple[str, ...], str]:
    """Return words to type -> the kind of finding that advises them, one value for each key."""
    typed: dict[tuple[str, ...], str] = {}
    keys = set()
    for kind, setup, curves in [*PLANTED, ("dead_reward", GRPO, DEAD), ("one_reward", GRPO, DROWNED)]:
        experiment = "+exp=toy_ppo" if setup.has_critic else "+exp=quickstart"
        if setup.truncation == "bootstrap":
            experiment = "+exp=toy_ppo truncation=bootstrap"
        for word in words(curves, setup, kind=kind):
            accepted = re.sub(r"^rewards\.\w+", "rewards.brevity", word)
            if not word.startswith("rlhf ") and (key := (experiment, accepted.partition("=")[0])) not in keys:
                keys.add(key)
                typed[*experiment.split(), *shlex.split(accepted)] = kind
    return typed


def test_every_kind_is_planted() -> None:
    assert {kind for kind, *_ in PLANTED} | {"dead_reward", "one_reward"} == set(FINDING_KINDS)


def test_every_advice_is_accepted() -> None:
    assert len(advice_by_key()) >= 20
    for typed, kind in advice_by_key().items():
        try:
            prepared = prepare(list(typed))
            preflight(prepared.experiment, prepared.composed)
        except UserError as error:
            pytest.fail(f"{kind}: {' '.join(typed)}: {error}")


def test_negative_control_an_unknown_key_is_refused() -> None:
    with pytest.raises(UserError):
        prepare(["+exp=quickstart", "rewards.twin.weight=0"])


NOISE = {**reward("a", mean=noisy(0.5, 0.5, 0.02)), "reward": noisy(0.0, 1.0, 0.05), "reward_std": [0.5] * 40}


@pytest.mark.parametrize(
    ("kind", "curves", "setup"),
    [
        # A divergence that grows as the square root of the steps grows ever more slowly.
        ("kl", {KL: [0.6 * (k / 39) ** 0.5 for k in range(40)]}, PPO),
        ("kl", {KL: noisy(0.0, 0.6, 0.01)}, PPO),
        ("truncation", {CUT: noisy(0.3, 0.3, 0.03)}, GRPO),
        ("length", {LENGTH: noisy(20, 20, 8)}, GRPO),
        ("value_loss", {VALUE: noisy(0.3, 0.3, 0.15)}, PPO),
        ("overoptimised", reward("gold", mean=noisy(0.5, 0.5, 0.1), weight=[0.0] * 40), PPO),
    ],
)
def test_negative_control_noise(kind: str, curves: Curves, setup: RunSetup) -> None:
    assert found({**NOISE, **curves}, setup, kind=kind) == []


def test_the_error_of_two_thirds_is_scipys() -> None:
    values = np.random.default_rng(4).standard_normal(31)
    first, last = (stats.sem(part, ddof=0) for part in (values[:10], values[-10:]))
    assert _error_of_thirds(Curve(np.arange(31), values, "x")) == pytest.approx(np.hypot(first, last))


@pytest.mark.parametrize(
    ("std", "normalized", "typed"),
    [
        (0.5, "", "weight=0.33"),  # a third of a deviation of 0.5, by a weight of 0.5 / (3 * 0.5)
        (0.05, "", "weight=3.3"),
        (0.002, "", "normalize=batch"),  # a weight of 83: the scores are on another scale
        (0.002, "small", "weight=0.17"),  # normalised scores deviate by 1
        (0.002, "big", "normalize=batch"),
    ],
)
def test_the_weights_to_try(std: float, normalized: str, typed: str) -> None:
    """A weight that changes counts as 1."""
    weights = {"rewards/big/weight": [1.0, 3.0] * 10, "rewards/small/weight": [0.01] * 20}
    drowned = {"rewards/small/std": [std] * 20, **weights}
    setup = replace(GRPO, rewards={normalized: {"normalize": "batch"}})
    assert words(shares([0.98] * 20, [0.02] * 20, **drowned), setup, kind="one_reward") == [f"rewards.small.{typed}"]
