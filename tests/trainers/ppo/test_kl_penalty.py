"""The KL penalty of PPO: counted once, and its coefficient after the divergence."""

from __future__ import annotations

import statistics
from typing import Any

import pytest
from torch import Tensor
from trl import GRPOTrainer

from tests.support.ppo_by_hand import LIMIT
from tests.support.tolerances import MODEL


class TestKl:
    def test_a_round_learns_with_the_coefficient_that_it_logs(self, rollouts, monkeypatch: pytest.MonkeyPatch) -> None:
        """Every step of a round has that of its rollout; what is measured on it moves the next round's."""
        seen: list[float] = []
        compute_loss = GRPOTrainer._compute_loss

        def spied(self: Any, model: Any, inputs: Any) -> Tensor:
            seen.append(self.beta)
            return compute_loss(self, model, inputs)

        monkeypatch.setattr(GRPOTrainer, "_compute_loss", spied)
        adapts = ("kl.where=loss", "kl.coef=0.3", "kl.controller={target: 1.5, horizon: 40}")
        run = rollouts(*adapts, "trainer.args.max_steps=4")
        logged = [event["kl/coef"] for event in run.events if "kl/coef" in event]
        assert seen == pytest.approx([logged[0], logged[0], logged[1], logged[1]])
        assert logged[0] == pytest.approx(0.3)
        assert abs(logged[1] - logged[0]) > 1e-3

    def test_the_coefficient_counts_the_rows_it_was_measured_on(self, rollouts) -> None:
        run = rollouts("truncation=exclude", "kl.controller={target: 1.5, horizon: 40}", "kl.coef=0.3")
        kept = [row for row in run.rows[0] if row.completion]
        assert len(kept) < len(run.rows[0])
        divergence = statistics.fmean(sum(row.kl) for row in kept)
        expected = 0.3 * (1 + min(max(divergence / 1.5 - 1, -0.2), 0.2) * len(kept) / 40)
        assert run.trainer.kl.coef == pytest.approx(expected, **MODEL)

    def test_a_round_without_a_row_leaves_the_coefficient_as_it_is(self, rollouts, says) -> None:
        """At the beginning of training it may well be that every completion is cut off."""
        says([100] * LIMIT)
        run = rollouts("truncation=exclude", "kl.controller={target: 1.5, horizon: 40}")
        assert run.trainer.kl.coef == 0.05

    @pytest.mark.parametrize(("where", "beta"), [("reward", 0.0), ("loss", 0.3), ("none", 0.0)])
    def test_counts_once(self, rollouts, monkeypatch: pytest.MonkeyPatch, where: str, beta: float) -> None:
        """In TRL's loss only where it is not in the reward; the reward's part is held by TestRollout."""
        seen: list[float] = []
        compute_loss = GRPOTrainer._compute_loss

        def spied(self: Any, model: Any, inputs: Any) -> Tensor:
            seen.append(self.beta)
            assert ("ref_per_token_logps" in inputs) == (where == "loss")
            return compute_loss(self, model, inputs)

        monkeypatch.setattr(GRPOTrainer, "_compute_loss", spied)
        run = rollouts(f"kl.where={where}", *(() if where == "none" else ("kl.coef=0.3",)))
        assert seen == [beta, beta]
        assert ("kl" in run.events[0]) == (where == "loss")
        assert ("rewards/kl/weighted_mean" in run.events[0]) == (where == "reward")
        assert (run.trainer.ref_model is None) == (where == "none")
