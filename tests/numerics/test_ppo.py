"""The numbers of PPO: GAE against its definition, the clipped value loss by hand and by its gradient, and TRL 1.12."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import Categorical, kl_divergence

from rlhf_cli.numerics.ppo import adapted_coef, explained_variance, gae, k1, k3, value_losses, whiten
from rlhf_cli.tables.trl_values import MAX_RELATIVE_KL_ERROR
from tests.support.tolerances import ARITHMETIC, assert_close, assert_equal

NAN = math.nan


@dataclass(frozen=True)
class Batch:
    """What `gae` is given, gamma and lam aside."""

    rewards: Tensor
    values: Tensor
    is_action: Tensor
    last_values: Tensor
    is_terminated: Tensor

    def gae(self, gamma: float, lam: float) -> tuple[Tensor, Tensor]:
        given = {name: value for name, value in vars(self).items() if name != "is_terminated"}
        return gae(**given, is_truncated=~self.is_terminated, gamma=gamma, lam=lam)


def ragged(seed: int) -> Batch:
    """(12, 9): rows of different lengths with holes, a few without an action; values are NaN where there is none."""
    generator = torch.Generator().manual_seed(seed)
    normal = partial(torch.randn, generator=generator, dtype=torch.float64)
    lengths = torch.randint(0, 10, (12, 1), generator=generator)
    is_action = (torch.rand(12, 9, generator=generator) < (0.3, 0.7, 1.0)[seed % 3]) & (torch.arange(9) < lengths)
    return Batch(
        rewards=normal(12, 9) * 3 + 1,
        values=(normal(12, 9) * 2 - 1).masked_fill(~is_action, NAN),
        is_action=is_action,
        last_values=normal(12) * 2,
        is_terminated=torch.rand(12, generator=generator) < 0.5,
    )


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
@pytest.mark.parametrize("seed", range(3))
def test_oracle(seed: int, gamma: float, lam: float) -> None:
    batch = ragged(seed)
    advantages, returns = batch.gae(gamma, lam)
    expected = oracle(batch, gamma, lam)
    assert_equal(advantages, expected)
    assert_equal(returns, torch.where(batch.is_action, expected + batch.values, 0.0))
    single = replace(batch, **{name: getattr(batch, name).float() for name in ("rewards", "values", "last_values")})
    advantages, returns = single.gae(gamma, lam)
    assert advantages.dtype == returns.dtype == torch.float32
    assert_close(advantages, expected)


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


def test_what_is_not_read() -> None:
    """NaN at non-actions and as the last value of a terminated row; the end of a row without an action."""
    batch = ragged(3)
    unread = replace(batch, last_values=batch.last_values.masked_fill(batch.is_terminated, NAN))
    for one, other in zip(batch.gae(0.9, 0.8), unread.gae(0.9, 0.8), strict=True):
        assert not one.isnan().any()
        assert torch.equal(one, other)
    nothing = torch.ones(2, 3), torch.full((2, 3), NAN), torch.zeros(2, 3, dtype=torch.bool)
    for one in Batch(*nothing, torch.ones(2), torch.tensor([False, True])).gae(0.9, 0.9):
        assert one.tolist() == [[0.0] * 3] * 2


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
    for name in (
        "rewards",
        "values",
        "padding_mask",
        "padding_mask_p1",
        "advantages",
        "returns",
        "whitened_advantages",
    ):
        found[name] = torch.tensor(found[name])
    found["critic"] = {name: torch.tensor(numbers) for name, numbers in found["critic"].items()}
    return dict(found)


def test_trl_gae_and_whitening(trl: dict[str, Any]) -> None:
    rows = len(trl["values"])
    ends = torch.full((rows,), NAN), torch.ones(rows, dtype=torch.bool)
    found = Batch(trl["rewards"], trl["values"], ~trl["padding_mask_p1"], *ends).gae(trl["gamma"], trl["lam"])
    for one, name in zip(found, ("advantages", "returns"), strict=True):
        assert_close(one, trl[name])
    is_token = ~trl["padding_mask"]
    assert_close(whiten(trl["advantages"], is_token)[0], trl["whitened_advantages"].where(is_token, 0.0))


MASK = torch.tensor([[1, 1, 0, 1], [0, 1, 1, 0]], dtype=torch.bool)


def test_whiten_by_hand() -> None:
    """1, 2, 3, 6, 8: mean 4, squares 9 + 4 + 1 + 4 + 16 = 34, over n - 1 = 4: 8.5."""
    values = torch.tensor([[1.0, 2.0, NAN, 3.0], [99.0, 6.0, 8.0, NAN]], dtype=torch.float64)
    whitened, mean, std = whiten(values, MASK)
    root = math.sqrt(8.5 + 1e-8)
    expected = [[-3 / root, -2 / root, 0, -1 / root], [0, 2 / root, 4 / root, 0]]
    assert_equal(whitened, torch.tensor(expected, dtype=torch.float64))
    assert float(mean) == pytest.approx(4.0)
    assert float(std) == pytest.approx(math.sqrt(8.5))


def test_whiten_holds_where_the_mean_dwarfs_the_deviation() -> None:
    """Two passes: the one-pass E[x^2] - E[x]^2 in float32 gives nothing like it, and neither does a float32 mean."""
    values = torch.tensor([[4096.25, 4096.5, 0.0, 4096.75], [0.0, 4096.25, 4096.5, 0.0]])
    kept = [4096.25, 4096.5, 4096.75, 4096.25, 4096.5]
    assert float(whiten(values, MASK)[2]) == pytest.approx(statistics.stdev(kept), rel=1e-6)
    inside = values[MASK]
    one_pass = ((inside**2).mean() - inside.mean() ** 2) * 5 / 4
    assert abs(float(one_pass) - statistics.variance(kept)) > 0.02


def ranks(function: Callable[..., Any], parts: list[list[Tensor]], sums: tuple[Tensor, ...] = ()) -> list[Any]:
    """`function` on each rank's part; a call is replayed until the sums of all its steps over the ranks are known."""

    class NotYet(Exception):
        pass

    told, results = list[Tensor](), list[Any]()
    for part in parts:
        known = iter(sums)

        def sum_over_ranks(mine: Tensor, known: Iterator[Tensor] = known) -> Tensor:
            assert mine.dim() == 1
            if (summed := next(known, None)) is not None:
                return summed
            told.append(mine)
            raise NotYet

        try:
            results.append(function(*part, sum_over_ranks))
        except NotYet:
            continue
    return results if not told else ranks(function, parts, (*sums, torch.stack(told).sum(0)))


@pytest.mark.parametrize("cut", [0, 3, 11])
def test_two_ranks_are_the_whole(cut: int) -> None:
    batch = ragged(1)
    everything = batch.values, batch.rewards + batch.values, batch.is_action
    parts = [[one[:cut] for one in everything], [one[cut:] for one in everything]]
    whole = whiten(everything[0], everything[2])
    halves = ranks(whiten, [[values, mask] for values, _, mask in parts])
    assert_equal(torch.cat([half[0] for half in halves]), whole[0])
    for half in halves:
        assert_equal(torch.stack(half[1:]), torch.stack(whole[1:]))
    for found in ranks(explained_variance, parts):
        assert_equal(found, explained_variance(*everything))
    if cut == 3:  # control: each rank by itself is something else
        alone = torch.cat([whiten(values, mask)[0] for values, _, mask in parts])
        assert (alone - whole[0]).abs().max() > 0.05


def test_whiten_of_fewer_than_two() -> None:
    values = torch.tensor([[3.0, NAN]])
    assert [one.tolist() for one in whiten(values, torch.tensor([[False, False]]))] == [[[0.0, 0.0]], 0.0, 0.0]
    assert [one.tolist() for one in whiten(values, torch.tensor([[True, False]]))] == [[[0.0, 0.0]], 3.0, 0.0]


def test_explained_variance_by_hand() -> None:
    returns = torch.tensor([[1.0, 2.0, NAN, 3.0], [NAN, 6.0, 8.0, NAN]])
    value = partial(explained_variance, returns=returns, mask=MASK)
    assert float(value(returns)) == 1.0
    assert float(value(returns + 5.0)) == 1.0  # a constant error is the bias, not the variance
    assert float(value(torch.full_like(returns, 7.0))) == 0.0
    assert float(value(returns / 2)) == pytest.approx(0.75)
    assert float(value(-returns)) == pytest.approx(-3.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_nothing_to_explain_is_nan(dtype: torch.dtype) -> None:
    constant = torch.full((2, 4), 0.1, dtype=dtype)
    assert explained_variance(torch.randn(2, 4, dtype=dtype), constant, MASK).isnan()
    assert explained_variance(constant, constant, torch.zeros_like(MASK)).isnan()
    barely = constant.clone()
    barely[0, 0] += 1e-6
    assert float(explained_variance(barely, barely, MASK)) == 1.0


@pytest.mark.parametrize(
    ("value", "old", "target", "loss", "is_clipped"),
    [
        (1.1, 1.0, 2.0, 0.405, False),  # within the clip: (0.9)^2 / 2
        (1.5, 1.0, 2.0, 0.32, True),  # went towards R by more than 0.2: counts as at 1.2
        (0.5, 1.0, 2.0, 1.125, False),  # went away from R: no token is spared
        (3.0, 1.0, 2.0, 0.5, False),  # past R, (1)^2 / 2, beats (0.8)^2 / 2 of the clipped one
        (0.5, 1.0, 0.0, 0.32, True),  # towards R from above
        (1.0, 1.0, 1.0, 0.0, False),
    ],
)
def test_a_clipped_value_has_no_gradient(
    value: float, old: float, target: float, loss: float, is_clipped: bool
) -> None:
    values = torch.tensor([value], requires_grad=True)
    losses, clipped = value_losses(values, torch.tensor([old]), torch.tensor([target]), 0.2)
    losses.backward()
    assert losses.item() == pytest.approx(loss, **ARITHMETIC)
    assert clipped.tolist() == [is_clipped]
    assert values.grad.item() == pytest.approx(0.0 if is_clipped else value - target, **ARITHMETIC)


def test_without_a_clip_it_is_half_the_squared_error() -> None:
    values, returns = torch.randn(2, 3, 4, dtype=torch.float64)
    losses, is_clipped = value_losses(values, values - 10.0, returns, None)
    assert_equal(losses, torch.nn.functional.mse_loss(values, returns, reduction="none") / 2)
    assert (is_clipped.dtype, is_clipped.any().item()) == (torch.bool, False)


def test_trl_value_losses(trl: dict[str, Any]) -> None:
    """TRL 1.12 halves after the mean, over a row's tokens and the position after them (see above)."""
    critic = trl["critic"]
    given, mask = (critic["vpred"], critic["mb_values"], critic["mb_return"]), critic["mask"]
    losses, is_clipped = value_losses(*given, trl["cliprange_value"])
    assert_close(losses, critic["vf_loss_max"] / 2)
    assert_close(losses[mask].mean(), critic["vf_loss"])
    assert_close(is_clipped[mask].float().mean(), critic["vf_clipfrac"])
    assert 0.1 < critic["vf_clipfrac"] < 0.9
    assert abs(value_losses(*given, None)[0][mask].mean() - critic["vf_loss"]) > 0.01


P = Categorical(torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64))


def test_estimators_are_unbiased_and_of_the_right_direction() -> None:
    """KL(p || q), not KL(q || p), which differs by far, by 400 000 tokens of p and the standard error of their mean."""
    q = Categorical(torch.tensor([0.01, 0.09, 0.3, 0.6], dtype=torch.float64))
    drawn = torch.multinomial(P.probs, 400_000, replacement=True, generator=torch.Generator().manual_seed(0))
    for estimator in (k1, k3):
        found = estimator(P.log_prob(drawn), q.log_prob(drawn))
        error = float(found.std()) / math.sqrt(found.numel())
        assert abs(float(found.mean()) - float(kl_divergence(P, q))) < 5 * error
        assert abs(float(found.mean()) - float(kl_divergence(q, P))) > 20 * error


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_k3_is_never_negative(dtype: torch.dtype) -> None:
    """Nor for ratios near 1, where exp(x) - 1 - x rounds below 0; k1 is, for one sample."""
    steps = torch.logspace(-12, 1, 5001, dtype=torch.float64)
    logq = torch.cat([steps, -steps, torch.zeros(1)]).to(dtype)
    logp = torch.zeros_like(logq)
    assert (k3(logp, logq) >= 0).all()
    assert (logq.exp() - 1 - logq < 0).any()  # control: as it is written
    assert (k1(logp, logq) < 0).any()


@pytest.mark.parametrize(
    ("kl", "coef"),
    [
        (6.0, 0.1),  # on target
        (6.6, 0.1 * (1 + 0.1 * 256 / 10_000)),  # 10 % above it
        (5.4, 0.1 * (1 - 0.1 * 256 / 10_000)),
        (60.0, 0.1 * (1 + 0.2 * 256 / 10_000)),  # held at 20 %
        (math.inf, 0.1 * (1 + 0.2 * 256 / 10_000)),
        (-1.0, 0.1 * (1 - 0.2 * 256 / 10_000)),
    ],
)
def test_controller_by_hand(kl: float, coef: float) -> None:
    found = adapted_coef(0.1, kl, 256, target=6.0, horizon=10_000, max_error=MAX_RELATIVE_KL_ERROR)
    assert found == pytest.approx(coef, rel=1e-12)
