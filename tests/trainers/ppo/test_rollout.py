"""The advantages, returns and values of a rollout against arithmetic of our own, row by row and without padding."""

from __future__ import annotations

import statistics
from typing import Any

import pytest
import torch
from torch import Tensor
from trl import GRPOTrainer

from rlhf_cli.trainers.ppo.rollout import without_last
from tests.support.ppo_by_hand import LIMIT, assert_rows, raw_advantages, total_of, whitened
from tests.support.tolerances import MODEL


class TestRollout:
    """The advantages, returns and values of a rollout, recomputed row by row."""

    @pytest.mark.parametrize(
        ("policy", "total"),
        [
            (("truncation=bootstrap", "truncation.mode=add"), lambda row: total_of(row.completion)),
            (
                ("truncation=bootstrap", "truncation.mode=replace"),
                lambda row: 0.0 if row.is_truncated else total_of(row.completion),
            ),
            (
                ("truncation=eos_penalty", "truncation.penalty=0.7"),
                lambda row: total_of(row.completion) - 0.7 * row.is_truncated,
            ),
            (
                ("truncation=eos_penalty", "truncation.penalty=0.7", "truncation.mode=replace"),
                lambda row: -0.7 if row.is_truncated else total_of(row.completion),
            ),
            (
                ("truncation=soft_overlong", "truncation.penalty=0.5", "truncation.cache=3"),
                # A ramp over the last three of six tokens.
                lambda row: total_of(row.completion) - 0.5 * max(0, len(row.completion) - 3) / 3,
            ),
        ],
        ids=["bootstrap", "bootstrap instead", "subtract", "replace", "soft_overlong"],
    )
    def test_whatever_being_cut_off_means(self, rollouts, policy: tuple[str, ...], total) -> None:
        run = rollouts(*policy, "kl.coef=0.3")
        (rows,), (output,) = run.rows, run.outputs
        assert {row.is_truncated for row in rows} == {True, False}
        is_bootstrapped = policy[0] == "truncation=bootstrap"
        raw = raw_advantages(rows, [total(row) for row in rows], coef=0.3, is_bootstrapped=is_bootstrapped)
        assert_rows(output["advantages"], whitened(raw))
        none = raw_advantages(rows, [total_of(row.completion) for row in rows], coef=0.3)
        with pytest.raises(AssertionError):  # control: it is not what `none` gives
            assert_rows(output["advantages"], whitened(none))

    @pytest.mark.parametrize("where", ["reward", "loss", "none"])
    def test_wherever_the_kl_penalty_is(self, rollouts, where: str) -> None:
        coef = () if where == "none" else ("kl.coef=0.3",)
        run = rollouts(f"kl.where={where}", *coef)
        (rows,), (output,) = run.rows, run.outputs
        assert {len(row.completion) for row in rows} >= {1, 2, LIMIT}  # ragged, and one is cut
        assert len({len(row.prompt) for row in rows}) > 1
        assert where == "none" or sum(abs(kl) for row in rows for kl in row.kl) > 1
        totals = [total_of(row.completion) for row in rows]
        raw = raw_advantages(rows, totals, coef=0.3 if where == "reward" else 0.0)
        assert_rows(output["advantages"], whitened(raw))
        assert_rows(output["rollout_values"], [row.values[:-1] for row in rows])
        returns = [[a + v for a, v in zip(one, row.values, strict=False)] for one, row in zip(raw, rows, strict=True)]
        assert_rows(output["returns"], returns)
        assert ("ref_per_token_logps" in output) == (where == "loss")
        if where != "none":
            logps = output["old_per_token_logps"].where(output["completion_mask"].bool(), 0.0)
            assert_rows(logps, [row.logps for row in rows])
        if where == "loss":
            logps = output["ref_per_token_logps"].where(output["completion_mask"].bool(), 0.0)
            assert_rows(logps, [row.ref_logps for row in rows])


class TestEvaluation:
    EVERY_STEP = ("data.eval.fraction=0.25", "trainer.args.eval_strategy=steps", "trainer.args.eval_steps=1")

    def test_is_of_the_models_as_they_are_and_moves_no_coefficient(self, rollouts) -> None:
        run = rollouts(*self.EVERY_STEP, "kl.controller={target: 1.5, horizon: 400}", "kl.coef=0.3")
        training, evaluations = run.rows[0], run.rows[1:]
        assert len(training) == 16
        assert {len(rows) for rows in evaluations} == {8}
        divergence = statistics.fmean(sum(row.kl) for row in training)
        coef = 0.3 * (1 + min(max(divergence / 1.5 - 1, -0.2), 0.2) * 16 / 400)
        assert run.trainer.kl.coef == pytest.approx(coef, **MODEL)
        for rows, output in zip(evaluations, run.outputs[1:], strict=True):
            totals = [total_of(row.completion) for row in rows]
            assert_rows(output["advantages"], whitened(raw_advantages(rows, totals, coef=coef)))


def test_a_score_that_gives_way_is_the_last_token_s_alone() -> None:
    """By hand: two components, and three rows of 3, 1 and 4 tokens; the second row keeps its score."""
    scores = torch.arange(1.0, 25.0).view(2, 3, 4)
    kept = [[[1, 2, 0, 4], [5, 6, 7, 8], [9, 10, 11, 0]], [[13, 14, 0, 16], [17, 18, 19, 20], [21, 22, 23, 0]]]
    assert without_last(scores, torch.tensor([3, 1, 4]), torch.tensor([True, False, True])).tolist() == kept


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
