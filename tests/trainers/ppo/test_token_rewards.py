"""Rewards under PPO that are not one number a row: dense ones, and those that do not apply."""

from __future__ import annotations

import statistics

import pytest

from tests.support.ppo_by_hand import GAMMA, LAMBDA, PLAIN, assert_rows, gae_of, raw_advantages, whitened
from tests.support.tolerances import ARITHMETIC


class TestDense:
    """Token rewards under PPO: completions that are given, so that it is known where each reward belongs."""

    def test_every_reward_lies_on_its_token(self, rollouts) -> None:
        """A dense reward beside a plain one, and a penalty: all in one row's tokens, which sum to its total."""
        rewards = ("++rewards.each={fn: './mine.py:each', weight: 0.5}", PLAIN[0])
        settings = ("truncation=eos_penalty", "truncation.penalty=0.7", "kl.coef=0.3")
        run = rollouts(*settings, rewards=rewards)
        (rows,), ((rollout, _),), (settled,) = run.rows, run.found, run.settled
        assert settled.names == ("each", "first", "truncation")
        expected = []
        for number, row in enumerate(rows):
            ids = row.completion
            dense = [0.0 if token % 3 == 0 else 0.5 * (token % 7 - 3.0) for token in ids]
            assert_rows(rollout.scores[0, number : number + 1], [dense])
            rewards_of_row = [one - 0.3 * kl for one, kl in zip(dense, row.kl, strict=True)]
            rewards_of_row[-1] += ids[0] % 5 / 4 - 0.7 * row.is_truncated
            total = rollout.scores[:, number].sum().item()
            assert total == pytest.approx(settled.totals[number].item(), **ARITHMETIC)
            expected.append(gae_of(rewards_of_row, row.values[:-1], 0.0, GAMMA, LAMBDA))
        assert_rows(run.outputs[0]["advantages"], whitened(expected))

    def test_without_dense_the_sum_lies_on_the_last_token(self, rollouts) -> None:
        rewards = ("++rewards.each={fn: './mine.py:each', weight: 0.5}",)
        run = rollouts("trainer.dense=false", "kl.where=none", rewards=rewards)
        ((rows,),) = (run.rows,)
        totals = [sum(0.5 * (token % 7 - 3.0) for token in row.completion if token % 3) for row in rows]
        assert_rows(run.outputs[0]["advantages"], whitened(raw_advantages(rows, totals)))


class TestExclude:
    def test_a_closed_gate_adds_nothing(self, rollouts) -> None:
        """GRPO fills in the group's mean; PPO has no groups, so it is 0."""
        gate = "gate: {by: odd, at_least: 1.0, otherwise: exclude}"
        rewards = ("++rewards.odd={fn: './mine.py:odd'}", f"++rewards.two={{fn: './mine.py:two', {gate}}}")
        run = rollouts("kl.where=none", rewards=rewards)
        ((rows,),) = (run.rows,)
        totals = [3.0 if row.completion[0] % 2 else 0.0 for row in rows]
        assert set(totals) == {0.0, 3.0}
        assert_rows(run.outputs[0]["advantages"], whitened(raw_advantages(rows, totals)))
        assert run.events[0]["reward"] == pytest.approx(statistics.fmean(totals), **ARITHMETIC)
        assert run.events[0]["rewards/two/mean"] == 2.0
