"""Under PPO, what sampling knew of its tokens is in the KL penalty and the ratio: by hand, in float64, row by row."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rlhf_cli.trainers.ppo.ppo_mixin import PpoMixin
from rlhf_cli.trainers.rollout_mixin import KeptLogps
from tests.support.ppo_by_hand import Rollouts, assert_rows, raw_advantages, total_of, whitened
from tests.support.tolerances import MODEL

DIFFERENCE = "sampling/kept_logp_difference/max"
CASES: dict[str, tuple[str, ...]] = {
    "penalty": ("trainer.args.steps_per_generation=1", "kl.coef=0.3", "trainer.args.temperature=0.7"),
    "penalty, several steps a round": ("trainer.args.steps_per_generation=2", "kl.coef=0.3"),
    "no penalty, two epochs": ("trainer.args.num_iterations=2", "kl.where=none"),
}
"""What asks: the penalty, TRL's ratio and the penalty, TRL's ratio."""
STEPS = dict(zip(CASES, (2, 4, 5), strict=True))
"""Two rounds of each."""


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of every pass without a gradient that was made for log-probabilities: whether it was the policy's."""
    made: list[bool] = []
    compute = PpoMixin._get_per_token_logps_and_entropies

    def spied(self: Any, model: Any, *args: Any, **named: Any) -> Any:
        if not torch.is_grad_enabled():
            made.append(model is self.model)
        return compute(self, model, *args, **named)

    monkeypatch.setattr(PpoMixin, "_get_per_token_logps_and_entropies", spied)
    return made


def assert_as_by_hand(run: Rollouts, coef: float) -> None:
    for rows, output in zip(run.rows, run.outputs, strict=True):
        assert len({len(row.completion) for row in rows}) >= 3
        for row, logps in zip(rows, output["old_per_token_logps"].tolist(), strict=True):
            assert logps[: len(row.completion)] == pytest.approx(row.logps, **MODEL)
        totals = [total_of(row.completion) for row in rows]
        assert_rows(output["advantages"], whitened(raw_advantages(rows, totals, coef=coef)))


@pytest.mark.parametrize("name", CASES)
def test_kept_in_place_of_a_pass(rollouts, asked: list[bool], name: str) -> None:
    """The first round computes them as well, to log the difference; from the second on the policy is not asked."""
    coef = 0.0 if "no penalty" in name else 0.3
    run = rollouts(*CASES[name], f"trainer.args.max_steps={STEPS[name]}")
    assert_as_by_hand(run, coef)
    assert len(run.outputs) == 2
    assert asked.count(True) == 1
    assert asked.count(False) == (len(run.outputs) if coef else 0)
    logged = [event[DIFFERENCE] for event in run.events if DIFFERENCE in event]
    assert len(logged) == 1
    assert logged[0] < 1e-4


def test_negative_control_others_are_seen(rollouts, monkeypatch: pytest.MonkeyPatch) -> None:
    padded = KeptLogps.padded
    monkeypatch.setattr(KeptLogps, "padded", lambda self, num_tokens: padded(self, num_tokens) - 0.1)
    run = rollouts(*CASES["penalty"])
    with pytest.raises(AssertionError):
        assert_as_by_hand(run, 0.3)
