"""GAE against its definition in Python's floats, by hand, at a fixed point known beforehand, and against TRL 1.12."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from rlhf_cli.numerics.gae import gae, whiten
from tests.numerics.ragged_batches import NAN, Batch, assert_close, ragged
from tests.support.tolerances import ARITHMETIC_OF_TENSORS


def oracle(batch: Batch, gamma: float, lam: float) -> Tensor:
    """A_t = sum over l >= 0 of (gamma lam)^l delta_{t+l}, as the paper writes it (eq. 16), over a row's actions."""
    advantages = torch.zeros(batch.values.shape, dtype=torch.float64)
    for row, acts in enumerate(batch.is_action.tolist()):
        actions = [t for t, is_one in enumerate(acts) if is_one]
        spans = pairwise([*actions, len(acts)])
        rewards = [math.fsum(batch.rewards[row, begin:end].tolist()) for begin, end in spans]
        values = [float(batch.values[row, t]) for t in actions]
        values.append(0.0 if batch.is_terminated[row] else float(batch.last_values[row]))
        deltas = [reward + gamma * values[i + 1] - values[i] for i, reward in enumerate(rewards)]
        for i, t in enumerate(actions):
            advantages[row, t] = math.fsum((gamma * lam) ** ahead * delta for ahead, delta in enumerate(deltas[i:]))
    return advantages


@pytest.mark.parametrize("lam", [0.0, 0.5, 0.95, 1.0])
@pytest.mark.parametrize("gamma", [0.3, 0.98, 1.0])
@pytest.mark.parametrize("seed", range(6))
def test_oracle(seed: int, gamma: float, lam: float) -> None:
    batch = ragged(seed)
    advantages, returns = batch.gae(gamma, lam)
    expected = oracle(batch, gamma, lam)
    assert_close(advantages, expected)
    assert_close(returns, torch.where(batch.is_action, expected + batch.values, 0.0))
    single = replace(batch, **{name: getattr(batch, name).float() for name in ("rewards", "values", "last_values")})
    advantages, returns = single.gae(gamma, lam)
    assert advantages.dtype == returns.dtype == torch.float32
    torch.testing.assert_close(advantages.double(), expected, rtol=1e-4, atol=1e-4)


def test_controls_the_oracle_sees_each_part() -> None:
    """With a part of the arithmetic left out or told wrongly, the numbers above are missed by far."""
    batch = ragged(1)
    expected = oracle(batch, 0.9, 0.8)
    clean = replace(batch, values=batch.values.nan_to_num(5.0))
    is_within = batch.is_action.flip(1).cumsum(1).flip(1) > 0
    without = {
        "gamma": clean.gae(1.0, 0.8)[0],
        "lam": clean.gae(0.9, 1.0)[0],
        "the bootstrap": replace(clean, is_terminated=torch.ones(12, dtype=torch.bool)).gae(0.9, 0.8)[0],
        "the end": replace(clean, is_terminated=torch.zeros(12, dtype=torch.bool)).gae(0.9, 0.8)[0],
        "holes (a tool's token counts as an action)": replace(clean, is_action=is_within).gae(0.9, 0.8)[0],
        "rewards in holes": replace(clean, rewards=clean.rewards.where(batch.is_action, 0.0)).gae(0.9, 0.8)[0],
    }
    for name, wrong in without.items():
        assert (wrong - expected).where(batch.is_action, 0.0).abs().max() > 0.1, name


BY_HAND = Batch(
    rewards=torch.tensor([[7.0, 1.0, 2.0, 4.0, 8.0, 16.0], [1.0, 2.0, 3.0, 0.0, 0.0, 5.0]], dtype=torch.float64),
    values=torch.tensor([[NAN, 10.0, NAN, 20.0, 30.0, NAN], [10.0, 20.0, 30.0, NAN, NAN, NAN]], dtype=torch.float64),
    is_action=torch.tensor([[0, 1, 0, 1, 1, 0], [1, 1, 1, 0, 0, 0]], dtype=torch.bool),
    last_values=torch.tensor([NAN, 100.0], dtype=torch.float64),
    is_terminated=torch.tensor([True, False]),
)
"""Row 0: actions 1, 3, 4 with rewards 1 + 2, 4, 8 + 16 (the 7 before is lost), then nothing. Row 1: 1, 2, 3 + 5."""


def test_by_hand_lam_1_gamma_1_is_all_later_rewards_minus_the_value() -> None:
    advantages, returns = BY_HAND.gae(1.0, 1.0)
    later = torch.tensor([[0, 31, 0, 28, 24, 0], [111, 110, 108, 0, 0, 0]], dtype=torch.float64)
    assert_close(returns, later)
    assert_close(advantages, (later - BY_HAND.values).nan_to_num(0.0))


def test_by_hand_lam_0_is_the_td_error() -> None:
    advantages, _ = BY_HAND.gae(0.5, 0.0)
    first = [0, 3 + 0.5 * 20 - 10, 0, 4 + 0.5 * 30 - 20, 24 - 30, 0]
    second = [1 + 0.5 * 20 - 10, 2 + 0.5 * 30 - 20, 8 + 0.5 * 100 - 30, 0, 0, 0]
    assert_close(advantages, torch.tensor([first, second], dtype=torch.float64))


def test_by_hand_between() -> None:
    """gamma lam = 0.25 carries each TD error (3, -1, -6 and 1, -3, 28) to the action before."""
    advantages, returns = BY_HAND.gae(0.5, 0.5)
    first = [0, 3 + 0.25 * (-1 + 0.25 * -6), 0, -1 + 0.25 * -6, -6, 0]
    second = [1 + 0.25 * (-3 + 0.25 * 28), -3 + 0.25 * 28, 28, 0, 0, 0]
    assert_close(advantages, torch.tensor([first, second], dtype=torch.float64))
    assert_close(returns[0, 3], advantages[0, 3] + 20)


@pytest.mark.parametrize("lam", [0.0, 0.95, 1.0])
def test_an_endless_stream_cut_short_keeps_its_value(lam: float) -> None:
    """Reward 1 for ever is worth 1 / (1 - gamma) = 10, wherever it is cut; taken for an end, it is not."""

    def fixed_point(*, is_end: bool) -> float:
        value = torch.zeros((), dtype=torch.float64)
        for _ in range(250):  # one state: its value is the mean of the returns seen in it
            rows = torch.ones(1, 10, dtype=torch.float64)
            ends = torch.tensor([is_end])
            batch = Batch(rows, value * rows, rows.bool(), value.unsqueeze(0), ends)
            value = batch.gae(0.9, lam)[1].mean()
        return float(value)

    assert fixed_point(is_end=False) == pytest.approx(10.0, abs=1e-9)
    assert fixed_point(is_end=True) < 9.0


def test_returns_of_the_cut_stream_by_hand() -> None:
    """What makes the control above fail: cut after T the return is 10 (1 - 0.9^(T - t))."""
    rows = torch.ones(1, 50, dtype=torch.float64)
    nothing = torch.zeros(1, dtype=torch.float64)
    _, returns = Batch(rows, 0 * rows, rows.bool(), nothing, torch.tensor([True])).gae(0.9, 1.0)
    assert_close(returns[0], torch.tensor([10 * (1 - 0.9 ** (50 - t)) for t in range(50)], dtype=torch.float64))


def test_what_is_not_read() -> None:
    """NaN at non-actions and as the last value of a terminated row; the end of a row without an action."""
    batch = ragged(3)
    unread = replace(batch, last_values=batch.last_values.masked_fill(batch.is_terminated, NAN))
    for one, other in zip(batch.gae(0.9, 0.8), unread.gae(0.9, 0.8), strict=True):
        assert not one.isnan().any()
        assert torch.equal(one, other)
    none, both = torch.tensor([False]), torch.tensor([True])
    for ends in (none, both):
        found = gae(
            torch.ones(1, 3),
            torch.full((1, 3), NAN),
            torch.zeros(1, 3, dtype=torch.bool),
            last_values=torch.ones(1),
            is_terminated=ends,
            is_truncated=ends,
            gamma=0.9,
            lam=0.9,
        )
        assert [one.tolist() for one in found] == [[[0.0] * 3]] * 2


def test_nothing_is_changed_in_place_and_rows_are_independent() -> None:
    batch, untouched = ragged(4), ragged(4)
    whole, _ = batch.gae(0.9, 0.8)
    for name, tensor in vars(untouched).items():
        assert torch.equal(getattr(batch, name).nan_to_num(99.0), tensor.nan_to_num(99.0)), name
    for row in range(12):
        alone = Batch(**{name: tensor[row : row + 1] for name, tensor in vars(batch).items()})
        assert torch.equal(alone.gae(0.9, 0.8)[0], whole[row : row + 1])


def test_no_tokens() -> None:
    empty = torch.zeros(2, 0)
    ends = torch.tensor([True, True])
    advantages, returns = Batch(empty, empty, empty.bool(), torch.zeros(2), ends).gae(1.0, 1.0)
    assert advantages.shape == returns.shape == (2, 0)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"gamma": 0.0}, "gamma is 0.0"),
        ({"gamma": 1.1}, "gamma is 1.1"),
        ({"gamma": NAN}, "gamma is nan"),
        ({"lam": -0.1}, "lam is -0.1"),
        ({"lam": 1.1}, "lam is 1.1"),
        ({"is_truncated": torch.tensor([True, True])}, r"rows \[0\] are not exactly one"),
        ({"is_truncated": torch.tensor([False, False])}, r"rows \[1\] are not exactly one"),
        ({"is_truncated": torch.tensor([0.0, 1.0])}, "is_truncated is torch.float32"),
        ({"is_terminated": torch.tensor([True])}, "is_terminated is torch.bool"),
        ({"rewards": torch.zeros(2, 5)}, "rewards"),
        ({"last_values": torch.zeros(2, 6)}, "last_values"),
        ({"is_action": torch.ones(2, 6)}, "not bool"),
        ({"is_action": torch.ones(2, 5, dtype=torch.bool)}, r"not one \(B, T\)"),
    ],
)
def test_refused(changed: dict[str, Any], message: str) -> None:
    given = {**vars(BY_HAND), "is_truncated": ~BY_HAND.is_terminated, "gamma": 0.9, "lam": 0.9, **changed}
    with pytest.raises(ValueError, match=message):
        gae(**given)


# against TRL 1.12
#
# TRL gives a row of n tokens that ended before the last column n + 1 steps: `padding_mask_p1` keeps the position after
# the end as a step of its own, whose state is the finished text (so V there is the critic's value of it), whose reward
# is the score and after which nothing follows. In a row that fills all columns there is no room for it: the score lies
# on the last token. Cut rows are taken for ended ones. So for `gae` TRL's steps are the actions, all terminated; what
# it then whitens, and trains the policy on, are the n tokens alone (`padding_mask`).


@pytest.fixture(scope="module")
def trl() -> dict[str, Any]:
    found = json.loads(Path(__file__).with_name("trl_1_12_ppo.json").read_text())
    for name in ("rewards", "values", "padding_mask", "padding_mask_p1", "advantages", "returns", "scores"):
        found[name] = torch.tensor(found[name])
    found["whitened_advantages"] = torch.tensor(found["whitened_advantages"])
    return dict(found)


def trl_batch(trl: dict[str, Any], is_action: Tensor) -> Batch:
    rows = trl["values"].shape[0]
    return Batch(trl["rewards"], trl["values"], is_action, torch.full((rows,), NAN), torch.ones(rows, dtype=torch.bool))


def test_trl_gae(trl: dict[str, Any]) -> None:
    advantages, returns = trl_batch(trl, ~trl["padding_mask_p1"]).gae(trl["gamma"], trl["lam"])
    torch.testing.assert_close(advantages, trl["advantages"], **ARITHMETIC_OF_TENSORS)
    torch.testing.assert_close(returns, trl["returns"], **ARITHMETIC_OF_TENSORS)


def test_trl_whitening(trl: dict[str, Any]) -> None:
    is_token = ~trl["padding_mask"]
    whitened, _, _ = whiten(trl["advantages"], is_token)
    torch.testing.assert_close(whitened, trl["whitened_advantages"].where(is_token, 0.0), **ARITHMETIC_OF_TENSORS)


def test_trl_has_a_step_more_in_rows_that_ended(trl: dict[str, Any]) -> None:
    """Our rows of n tokens, the score on the last one: the same numbers in full rows, others in ended ones.

    The extra step is one more delay of the score, by V of the finished text and by gamma lam.
    """
    is_token = ~trl["padding_mask"]
    is_full = is_token.all(dim=1)
    assert 0 < is_full.sum() < len(is_full)
    advantages, _ = trl_batch(trl, is_token).gae(trl["gamma"], trl["lam"])
    torch.testing.assert_close(advantages[is_full], trl["advantages"][is_full], **ARITHMETIC_OF_TENSORS)
    ended = (advantages - trl["advantages"]).where(is_token, 0.0)[~is_full]
    assert (ended.abs().amax(dim=1) > 0.005).all()
    row = int((~is_full).nonzero()[0])
    last = int(is_token[row].sum()) - 1
    step = trl["gamma"] * trl["values"][row, last + 1] + trl["gamma"] * trl["lam"] * trl["advantages"][row, last + 1]
    difference = trl["advantages"][row, last] - advantages[row, last]
    torch.testing.assert_close(difference, step - trl["scores"][row], **ARITHMETIC_OF_TENSORS)
