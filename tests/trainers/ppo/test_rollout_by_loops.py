"""What PPO makes of a rollout, its shares and its metrics, from tensors alone: against loops over lists, row by row."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from rlhf_cli.algorithms.ppo import Ppo, Rollout
from rlhf_cli.trainers.forward_pass import has_value, model_rows
from rlhf_cli.trainers.ppo.critic import KlPenalty, prompts_and_completions
from rlhf_cli.trainers.ppo.ppo_mixin import rollout_metrics
from tests.support.ppo_by_hand import assert_rows, gae_of, whitened
from tests.support.tolerances import EXACT

LENGTHS, WIDTH, NAMES = (4, 1, 3, 0), 5, ("a", "b")
"""Tokens of four rows; the last was left out."""
ON = torch.tensor([True, False, False, True])
"""Rows whose return includes the critic's last value; one of them was left out."""
SETTINGS = Ppo(0.9, 0.8, whiten_advantages=True, keeps_prompts=True)


def rollout(**changed: Any) -> Rollout:
    """Random numbers everywhere, also at positions without an action, which must not be read."""
    draws = torch.Generator().manual_seed(1)
    normal = partial(torch.randn, generator=draws, dtype=torch.float64)
    logps, ref_logps, values = normal(3, len(LENGTHS), WIDTH)
    is_action = torch.arange(WIDTH) < torch.tensor(LENGTHS).unsqueeze(1)
    scores = normal(2, len(LENGTHS), WIDTH).where(is_action, 0.0)
    last = normal(len(LENGTHS))
    given = Rollout(is_action, scores, values, last, ON, logps, ref_logps)
    return replace(given, **changed)


def rows_of(one: Rollout, kl_coef: float) -> list[dict[str, Any]]:
    """Each row's numbers as lists of its own length."""
    found = []
    for row, length in enumerate(LENGTHS):
        cut: Any = {
            name: getattr(one, name)[row, :length].double().tolist() for name in ("values", "logps", "ref_logps")
        }
        kl = [p - q for p, q in zip(cut["logps"], cut["ref_logps"], strict=True)]
        scores = one.scores[:, row, :length].double().tolist()
        last = float(one.last_values[row]) if ON[row] else 0.0
        found.append({**cut, "kl": kl, "scores": scores, "penalty": [-kl_coef * nats for nats in kl], "last": last})
    return found


def gae(rewards: list[float], values: list[float], last: float) -> list[float]:
    return gae_of(rewards, values, last, SETTINGS.gamma, SETTINGS.gae_lambda) if rewards else []


def expected_raw(rows: list[dict[str, Any]]) -> list[list[float]]:
    found = []
    for row in rows:
        rewards = [sum(parts) for parts in zip(*row["scores"], row["penalty"], strict=True)]
        found.append(gae(rewards, row["values"], row["last"]))
    return found


@pytest.mark.parametrize("where", ["reward", "loss", "none"])
@pytest.mark.parametrize("whitens", [True, False])
def test_advantages_and_returns(where: str, *, whitens: bool) -> None:
    one, kl = rollout(), KlPenalty(where, 0.3)
    rows = rows_of(one, 0.3 if where == "reward" else 0.0)
    found = replace(SETTINGS, whiten_advantages=whitens).advantages(one, kl.coef_in_reward, lambda sums: sums)
    raw = expected_raw(rows)
    returns = [[a + v for a, v in zip(one, row["values"], strict=True)] for one, row in zip(raw, rows, strict=True)]
    assert_rows(found.raw, raw, within=EXACT)
    assert_rows(found.used, whitened(raw) if whitens else raw, within=EXACT)
    assert_rows(found.returns, returns, within=EXACT)
    assert_rows(found.kl_reward, [row["penalty"] for row in rows], within=EXACT)


def test_without_a_reference_nothing_is_taken() -> None:
    one = rollout(ref_logps=None)
    found = SETTINGS.advantages(one, 0.3, lambda sums: sums)
    assert not found.kl_reward.any()
    assert one.kl_tokens(torch.sub) is None
    assert rollout(logps=None).kl_tokens(torch.sub) is None
    assert "kl" not in SETTINGS.shares(one, found, NAMES, lambda sums: sums)


def test_shares_are_of_what_each_part_would_be_alone() -> None:
    one = rollout()
    advantages = SETTINGS.advantages(one, 0.3, lambda sums: sums)
    rows = rows_of(one, 0.3)
    parts = {name: [row["scores"][place] for row in rows] for place, name in enumerate(NAMES)}
    parts["kl"] = [row["penalty"] for row in rows]
    alone = {
        name: [value for rewards in of for value in gae(rewards, [0.0] * len(rewards), 0.0)]
        for name, of in parts.items()
    }
    alone["value"] = [
        value for row in rows
        for value in gae([0.0] * len(row["values"]), row["values"], row["last"])
    ]  # fmt: skip
    used = [value for row in whitened(expected_raw(rows)) for value in row]
    energy = sum(sum(values) * of for *values, of in zip(*alone.values(), used, strict=True))
    expected = {
        name: sum(part * of for part, of in zip(values, used, strict=True)) / energy for name, values in alone.items()
    }
    assert SETTINGS.shares(one, advantages, NAMES, lambda sums: sums) == pytest.approx(expected, rel=1e-4)


def test_parts_may_miss_the_advantages_by_what_float32_rounds() -> None:
    """The limit of a token is a millionth of the sum of its parts' sizes, times the five tokens of the recursion.

    With scores of a million that is a few units.
    """
    given = rollout()
    one = replace(given, scores=1e6 * given.scores)
    advantages = SETTINGS.advantages(one, 0.3, lambda sums: sums)
    limit = 5e-6 * SETTINGS.parts(one, advantages.kl_reward)[:, 0, 0].abs().sum()
    assert limit > 1.0
    for off, expected in ((0.9 * limit, [*NAMES, "kl", "value"]), (1.1 * limit, [])):
        raw = advantages.raw.clone()
        raw[0, 0] += off
        assert list(SETTINGS.shares(one, replace(advantages, raw=raw), NAMES, lambda sums: sums)) == expected
    # If they do not add up on another rank, no rank has shares.
    assert SETTINGS.shares(one, advantages, NAMES, lambda sums: sums + 1) == {}


@pytest.mark.parametrize("where", ["reward", "loss", "none"])
def test_metrics(where: str) -> None:
    one, kl = rollout(), KlPenalty(where, 0.3)
    rows = rows_of(one, 0.3 if where == "reward" else 0.0)
    advantages = SETTINGS.advantages(one, kl.coef_in_reward, lambda sums: sums)
    raw = [value for row in expected_raw(rows) for value in row]
    values = [value for row in rows for value in row["values"]]
    returns = [a + v for a, v in zip(raw, values, strict=True)]
    kls, counted = [nats for row in rows for nats in row["kl"]], sum(length > 0 for length in LENGTHS)
    expected = {
        "ppo/returns_mean": statistics.fmean(returns), "ppo/returns_std": statistics.stdev(returns),
        "ppo/values_mean": statistics.fmean(values),
        "ppo/advantages_mean": statistics.fmean(raw), "ppo/advantages_std": statistics.stdev(raw),
        "ppo/explained_variance": 1 - statistics.variance(raw) / statistics.variance(returns),
        "rewards/truncation/bootstrap_value": 0.9 * rows[0]["last"],  # the other that goes on was left out
    }  # fmt: skip
    if where != "none":
        expected["kl/k1_policy_ref"] = statistics.fmean(kls)
        expected["kl/k3_policy_ref"] = statistics.fmean(math.exp(-nats) - 1 + nats for nats in kls)
        expected["kl/k1_policy_ref_per_row"] = sum(kls) / counted
        expected["kl/coef"] = 0.3
    if where == "reward":
        penalty = -0.3 * sum(kls) / counted
        scores = sum(value for row in rows for part in row["scores"] for value in part) / counted
        expected |= {"rewards/kl/weighted_mean": penalty, "ppo/rlhf_reward": scores + penalty}
    found = rollout_metrics(one, advantages, SETTINGS, kl, lambda sums: sums)
    assert found == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_of_no_row_there_is_no_mean() -> None:
    nothing = rollout(is_action=torch.zeros(len(LENGTHS), WIDTH, dtype=torch.bool))
    advantages = SETTINGS.advantages(nothing, 0.3, lambda sums: sums)
    found = rollout_metrics(nothing, advantages, SETTINGS, KlPenalty("reward", 0.3), lambda sums: sums)
    for name in ("kl/k1_policy_ref", "rewards/truncation/bootstrap_value", "ppo/rlhf_reward"):
        assert math.isnan(found[name])
    adapts = KlPenalty("reward", 0.3, target=1.0, horizon=10)
    assert adapts.updated(found["kl/k1_policy_ref_per_row"], 0) is adapts


BATCH: Any = {
    "prompt_ids": torch.tensor([[0, 0, 5], [0, 6, 7], [0, 0, 8]]),
    "prompt_mask": torch.tensor([[0, 0, 1], [0, 1, 1], [0, 0, 1]]),
    "completion_ids": torch.tensor([[11, 12, 0, 0], [13, 0, 0, 0], [0, 0, 0, 0]]),
    "completion_mask": torch.tensor([[1, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]]),
}


@pytest.mark.parametrize("is_packed", [True, False])
@pytest.mark.parametrize("may_move", [True, False])
def test_the_tokens_whose_states_are_valued(*, is_packed: bool, may_move: bool) -> None:
    """A prompt's last and every token of the completion, row by row, however the rows are laid out."""
    ids, mask, _ = prompts_and_completions(BATCH)
    expected_mask = [[True, True, True, False, False], [True, True, False, False, False], [True] + [False] * 4]
    assert has_value(mask, 4).tolist() == expected_mask
    inputs, places = model_rows(ids, mask, 4, is_packed=is_packed, may_move=may_move, with_last=True)
    given: Any = inputs["input_ids"]
    assert given.flatten()[places].tolist() == [5, 11, 12, 7, 13, 8]
    if not is_packed:
        assert given.shape == (3, 4 if may_move else 5)
        assert inputs["attention_mask"].shape == given.shape  # type: ignore[attr-defined]
