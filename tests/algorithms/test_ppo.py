"""When PPO takes a round's advantages for rounding errors, and whose last score the critic's value replaces."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from rlhf_cli.algorithms.ppo import Ppo, Rollout, without_last


def test_the_last_score_of_replaced_rows_is_0() -> None:
    """Rows of 3, 1 and 2 tokens; the second keeps its score, and so do the places behind a row's last token."""
    scores = torch.arange(1.0, 19.0).reshape(2, 3, 3)
    expected = scores.clone()
    expected[:, 0, 2] = expected[:, 2, 1] = 0.0
    found = without_last(scores, torch.tensor([3, 1, 2]), torch.tensor([True, False, True]))
    assert torch.equal(found, expected)


ROUND = Rollout(
    is_action=torch.tensor([[True, True], [True, False]]),
    scores=torch.zeros(1, 2, 2),
    values=torch.zeros(2, 2),
    last_values=torch.zeros(2),
    is_bootstrapped=torch.tensor([True, True]),
    logps=torch.tensor([[-1.0, -2.0], [-3.0, 0.0]]),
    ref_logps=torch.tensor([[-1.0, -2.0], [-3.0, 0.0]]) + 3e-6,
)
KL = 0.05
PPO = Ppo(gamma=1.0, gae_lambda=0.95, whiten_advantages=True, keeps_prompts=True)


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, True),
        ({"ref_logps": torch.full((2, 2), -2.0)}, False),  # the policy has left its reference
        ({"scores": torch.tensor([[[0.0, 1e-3], [0.0, 0.0]]])}, False),  # a small score is one
        ({"last_values": torch.tensor([0.0, torch.nan])}, False),  # left to the guard
    ],
)
def test_what_is_rounding(changed: dict[str, torch.Tensor], expected: bool) -> None:
    found = PPO.advantages(replace(ROUND, **changed), KL, lambda sums: sums)
    assert found.is_rounding is expected
    assert bool((found.used == 0).all()) is bool((found.raw == 0).all()) is bool((found.returns == 0).all()) is expected


def in_rows_of_one_token(scores: list[list[list[float]]], ref_logps: torch.Tensor = ROUND.ref_logps) -> Rollout:
    is_action, ended = torch.tensor([[True, False]] * 2), torch.tensor([False, False])
    scored = replace(ROUND, scores=torch.tensor(scores), ref_logps=ref_logps)
    return replace(scored, is_action=is_action, is_bootstrapped=ended)


@pytest.mark.parametrize(("apart", "expected"), [(1.2e-5, True), (3e-5, False)])
def test_what_is_rounding_is_measured_by_the_largest_score(apart: float, expected: bool) -> None:
    """Two rows score 1 and 1 + `apart`, in two components: each is `apart` / 2 from their mean."""
    scores = [[[0.5, 0.0], [0.5, 0.0]], [[0.5, 0.0], [0.5 + apart, 0.0]]]
    nearly_alike = in_rows_of_one_token(scores, ROUND.logps)
    assert PPO.advantages(nearly_alike, KL, lambda sums: sums).is_rounding is expected


def test_equal_advantages_are_rounding_only_if_they_are_whitened() -> None:
    """The same score: whitened the advantages are 0, else each is 1. The critic learns it either way."""
    alike = in_rows_of_one_token([[[1.0, 0.0], [1.0, 0.0]]])
    for whitens in (True, False):
        found = replace(PPO, whiten_advantages=whitens).advantages(alike, KL, lambda sums: sums)
        assert found.is_rounding is whitens
        assert found.returns[:, 0].tolist() == pytest.approx([1.0, 1.0])
