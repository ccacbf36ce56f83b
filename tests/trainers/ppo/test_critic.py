"""The critic in real runs: what trains it and when, and what must not."""

from __future__ import annotations

import math

import pytest
import torch

from tests.support.watched_critic import BOTH, SHARED, is_same, logged


class TestWarmUp:
    @BOTH
    def test_the_critic_alone_learns_at_first(self, watch, arrangement: list[str]) -> None:
        seen = watch(*arrangement, "critic.warmup_steps=2", "trainer.args.gradient_accumulation_steps=2")
        start, first, second, third = seen.policy
        assert is_same(start, first)
        assert is_same(start, second)
        assert not is_same(start, third)
        assert [is_same(*pair) for pair in zip(seen.values, seen.values[1:], strict=False)] == [False] * 3
        assert logged(seen.folder, "grad_norm")[:2] == [0.0, 0.0]

    def test_without_one_the_policy_learns_at_once(self, watch) -> None:
        seen = watch()
        assert not is_same(seen.policy[0], seen.policy[1])
        assert logged(seen.folder, "reward")
        assert not logged(seen.folder, "frac_reward_zero_std")  # PPO has no groups


class TestOptimizer:
    @BOTH
    def test_it_follows_the_schedule_and_its_gradient_is_clipped_alone(self, watch, arrangement: list[str]) -> None:
        """The norm is logged as it was before clipping."""
        schedule = ("trainer.args.lr_scheduler_type=cosine", "critic.learning_rate=0.04")
        seen = watch(*arrangement, *schedule, "critic.max_grad_norm=0.001", "critic.loss_coef=1000")
        wanted = [0.02 * (1 + math.cos(math.pi * step / 3)) for step in range(3)]
        assert seen.used_learning_rates == pytest.approx(wanted)
        assert logged(seen.folder, "critic/learning_rate") == pytest.approx(wanted)
        assert logged(seen.folder, "learning_rate") == pytest.approx([rate / 40 for rate in wanted])
        assert max(seen.clipped) <= 0.001 * (1 + 1e-4)
        before = [torch.cat([one.flatten() for one in step.values()]).norm().item() for step in seen.gradients]
        assert logged(seen.folder, "critic/grad_norm") == pytest.approx(before, rel=1e-4)
        assert min(before) > 0.01

    @BOTH
    def test_neither_loss_reaches_the_other_s_parameters(self, watch, arrangement: list[str]) -> None:
        """However large the value loss, step 1 of the policy is the same to the last bit, as is its gradient's norm."""
        small = watch(*arrangement, "critic.loss_coef=1e-6", "trainer.args.max_steps=1", name="small")
        large = watch(*arrangement, "critic.loss_coef=1e6", "trainer.args.max_steps=1", name="large")
        assert is_same(small.policy[1], large.policy[1])
        assert not is_same(small.policy[0], small.policy[1])
        assert logged(small.folder, "grad_norm") == logged(large.folder, "grad_norm")
        norms = [logged(run.folder, "critic/grad_norm")[0] for run in (small, large)]
        assert norms[1] == pytest.approx(1e12 * norms[0], rel=1e-3)


class TestEvaluation:
    EVAL = ("trainer.args.eval_strategy=steps", "trainer.args.eval_steps=1")
    # Of 64 rows: ten in batches of 3, 3, 3 and 1, or 32 at once, where a round has 16.
    SMALL = ("+data.eval.fraction=0.15", "trainer.args.per_device_eval_batch_size=3")
    LARGE = ("+data.eval.fraction=0.5", "trainer.args.per_device_eval_batch_size=40")

    @pytest.mark.parametrize(("arrangement", "size"), [([], LARGE), (SHARED, SMALL)], ids=["large", "shared"])
    def test_evaluation_runs_beside_training(self, watch, arrangement: list[str], size: tuple[str, ...]) -> None:
        seen = watch(*arrangement, *self.EVAL, *size)
        names = ("eval_loss", "eval_reward", "eval_ppo/explained_variance", "eval_ppo/policy_loss", "eval_ppo/entropy")
        for name in names:
            assert len(logged(seen.folder, name)) == 3, name
        assert len(logged(seen.folder, "ppo/value_loss")) == 3
