"""The numbers of PPO: GAE against its definition, the clipped value loss by hand and by its gradient, and TRL 1.12."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable
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


BY_HAND = Batch(
    rewards=torch.tensor([[7.0, 1.0, 2.0, 4.0, 8.0, 16.0], [1.0, 2.0, 3.0, 0.0, 0.0, 5.0]], dtype=torch.float64),
    values=torch.tensor([[NAN, 10.0, NAN, 20.0, 30.0, NAN], [10.0, 20.0, 30.0, NAN, NAN, NAN]], dtype=torch.float64),
    is_action=torch.tensor([[0, 1, 0, 1, 1, 0], [1, 1, 1, 0, 0, 0]], dtype=torch.bool),
    last_values=torch.tensor([NAN, 100.0], dtype=torch.float64),
    is_terminated=torch.tensor([True, False]),
)
"""Row 0: actions 1, 3, 4 with rewards 1 + 2, 4, 8 + 16 (the 7 before is lost), then nothing. Row 1: 1, 2, 3 + 5."""


def test_by_hand_between() -> None:
    """gamma lam = 0.25 carries each TD error (3, -1, -6 and 1, -3, 28) to the action before."""
    advantages, returns = BY_HAND.gae(0.5, 0.5)
    first = [0, 3 + 0.25 * (-1 + 0.25 * -6), 0, -1 + 0.25 * -6, -6, 0]
    second = [1 + 0.25 * (-3 + 0.25 * 28), -3 + 0.25 * 28, 28, 0, 0, 0]
    assert_equal(advantages, torch.tensor([first, second], dtype=torch.float64))
    assert_equal(returns[0, 3], advantages[0, 3] + 20)


def test_what_is_not_read() -> None:
    """NaN at non-actions and as the last value of a terminated row; the end of a row without an action."""
    batch = ragged(3)
    unread = replace(batch, last_values=batch.last_values.masked_fill(batch.is_terminated, NAN))
    for one, other in zip(batch.gae(0.9, 0.8), unread.gae(0.9, 0.8), strict=True):
        assert not one.isnan().any()
        assert torch.equal(one, other)
    none, both = torch.tensor([False]), torch.tensor([True])
    for ends in (none, both):
        nothing = torch.ones(1, 3), torch.full((1, 3), NAN), torch.zeros(1, 3, dtype=torch.bool)
        found = gae(*nothing, last_values=torch.ones(1), is_truncated=ends, gamma=0.9, lam=0.9)
        assert [one.tolist() for one in found] == [[[0.0] * 3]] * 2


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
    assert_close(advantages, trl["advantages"])
    assert_close(returns, trl["returns"])


def test_trl_whitening(trl: dict[str, Any]) -> None:
    is_token = ~trl["padding_mask"]
    whitened, _, _ = whiten(trl["advantages"], is_token)
    assert_close(whitened, trl["whitened_advantages"].where(is_token, 0.0))


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


def ranks(
    function: Callable[..., Any], parts: list[tuple[Tensor, ...]], sums: list[list[Tensor]] | None = None
) -> list[Any]:
    """`function` on each rank's part, with what the ranks would tell one another: each call is replayed until the sums
    of all its steps are known."""
    sums = sums or []

    class NotYet(Exception):
        pass

    told: list[Tensor] = []

    def sum_over_ranks(mine: Tensor) -> Tensor:
        assert mine.dim() == 1
        step = next(steps)
        if step < len(sums):
            return torch.stack(sums[step]).sum(0)
        told.append(mine)
        raise NotYet

    results = []
    for part in parts:
        steps = iter(range(99))
        try:
            results.append(function(*part, sum_over_ranks))
        except NotYet:
            continue
    return results if len(results) == len(parts) else ranks(function, parts, [*sums, told])


@pytest.mark.parametrize("cut", [0, 3, 11])
def test_two_ranks_are_the_whole(cut: int) -> None:
    batch = ragged(1)
    values, returns = batch.values, batch.rewards + batch.values
    whole = whiten(values, batch.is_action)
    halves = ranks(whiten, [(values[:cut], batch.is_action[:cut]), (values[cut:], batch.is_action[cut:])])
    assert_equal(torch.cat([half[0] for half in halves]), whole[0])
    for half in halves:
        assert_equal(torch.stack(half[1:]), torch.stack(whole[1:]))
    everything = (values, returns, batch.is_action)
    parts = [tuple(one[:cut] for one in everything), tuple(one[cut:] for one in everything)]
    for found in ranks(explained_variance, parts):
        assert_equal(found, explained_variance(*everything))
    if cut == 3:  # control: each rank by itself is something else
        alone = torch.cat([whiten(values[:3], batch.is_action[:3])[0], whiten(values[3:], batch.is_action[3:])[0]])
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
def test_by_hand(value: float, old: float, target: float, loss: float, is_clipped: bool) -> None:
    losses, clipped = value_losses(torch.tensor([value]), torch.tensor([old]), torch.tensor([target]), 0.2)
    assert losses.item() == pytest.approx(loss, **ARITHMETIC)
    assert clipped.tolist() == [is_clipped]


def test_without_a_clip_it_is_half_the_squared_error() -> None:
    values, returns = torch.randn(2, 3, 4, dtype=torch.float64)
    losses, is_clipped = value_losses(values, values - 10.0, returns, None)
    assert_equal(losses, torch.nn.functional.mse_loss(values, returns, reduction="none") / 2)
    assert is_clipped.dtype == torch.bool
    assert not is_clipped.any()
    clipped = value_losses(values, values - 10.0, returns, 0.2)[0]
    assert (clipped > losses + 1).any()  # control: the clip is felt on these numbers


def test_no_gradient_where_clipped() -> None:
    values = torch.tensor([1.5, 1.1, 0.5], requires_grad=True)
    losses, is_clipped = value_losses(values, torch.ones(3), torch.full((3,), 2.0), 0.2)
    losses.sum().backward()
    assert is_clipped.tolist() == [True, False, False]
    assert_close(values.grad, torch.tensor([0.0, -0.9, -1.5]))


def test_trl() -> None:
    """TRL 1.12 halves after the mean, over a row's tokens and the position after them (see above)."""
    found = json.loads(Path(__file__).with_name("trl_1_12_ppo.json").read_text())
    critic = {name: torch.tensor(numbers) for name, numbers in found["critic"].items()}
    given = critic["vpred"], critic["mb_values"], critic["mb_return"]
    losses, is_clipped = value_losses(*given, found["cliprange_value"])
    assert_close(losses, critic["vf_loss_max"] / 2)
    assert_close(losses[critic["mask"]].mean(), critic["vf_loss"])
    assert_close(is_clipped[critic["mask"]].float().mean(), critic["vf_clipfrac"])
    assert 0.1 < critic["vf_clipfrac"] < 0.9
    unclipped, _ = value_losses(*given, None)
    assert abs(unclipped[critic["mask"]].mean() - critic["vf_loss"]) > 0.01


P = Categorical(torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64))


def estimates(estimator: Callable[[Tensor, Tensor], Tensor], p: Categorical, q: Categorical) -> tuple[float, float]:
    """Mean over 400 000 tokens of p, and its standard error."""
    drawn = torch.multinomial(p.probs, 400_000, replacement=True, generator=torch.Generator().manual_seed(0))
    found = estimator(p.log_prob(drawn), q.log_prob(drawn))
    return float(found.mean()), float(found.std()) / math.sqrt(found.numel())


def test_estimators_are_unbiased_and_of_the_right_direction() -> None:
    """KL(p || q), not KL(q || p): the two differ by far for these."""
    q = Categorical(torch.tensor([0.01, 0.09, 0.3, 0.6], dtype=torch.float64))
    forward, backward = float(kl_divergence(P, q)), float(kl_divergence(q, P))
    for estimator in (k1, k3):
        mean, error = estimates(estimator, P, q)
        assert abs(mean - forward) < 5 * error
        assert abs(mean - backward) > 20 * error


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
