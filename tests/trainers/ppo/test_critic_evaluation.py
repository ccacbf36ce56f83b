"""Evaluation beside training with a critic, and the table of completions."""

from __future__ import annotations

import math

import pyarrow.parquet
import pytest

from tests.support.watched_critic import SHARED, is_same, logged


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

    def test_it_changes_nothing_but_the_random_numbers(self, watch) -> None:
        """Neither the policy, nor the critic, nor the coefficient is moved by what was evaluated."""
        seen = watch(*self.EVAL, *self.SMALL, "kl.controller={target: 0.01, horizon: 5}")
        trainer = seen.trainer
        before = trainer.kl, dict(seen.values[-1]), dict(seen.policy[-1])
        trainer.evaluate()
        seen.on_step_end(None, None, None)
        assert trainer.kl == before[0]
        assert is_same(seen.values[-1], before[1])
        assert is_same(seen.policy[-1], before[2])

    def test_every_row_of_the_table_has_its_advantage(self, watch) -> None:
        seen = watch("trainer.args.whiten_advantages=false")
        for step in (1, 3):
            file = seen.folder.path / "completions" / f"completions_{step:05d}.parquet"
            advantages = pyarrow.parquet.read_table(file).column("advantage").to_pylist()
            assert len(advantages) == 16
            assert all(math.isfinite(advantage) for advantage in advantages)
            assert len({round(advantage, 6) for advantage in advantages}) > 1
