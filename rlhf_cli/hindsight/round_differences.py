"""Compute how one round would have differed: totals, order within groups, advantages, and their push.

The push of advantages: a step of size eta on the objective sum_i A_i log pi(y_i), taken over the distribution of
answers itself, makes pi'(y) proportional to pi(y) exp(eta A(y)). The mean of any score c then is, to first order in
eta,

    E'[c] = E[c] + eta Cov(A, c) .

So the covariance of the advantages with a reward's raw scores, within groups, is the direction in which that reward is
pushed. `push` is its estimate over a round, sum_i A_i (c_i - mean of c in the group) / n, in raw units per unit of eta.
A network does not move answers independently: docs/whatif.md measures how often the sign is right.

Shapes: N rows, groups are consecutive; NaN = no score, or no total.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace

import torch
from torch import Tensor

from rlhf_cli.hindsight.advantage_recipe import Recipe
from rlhf_cli.hindsight.settled_again import SettledAgain
from rlhf_cli.hindsight.stored_rounds import StoredRound
from rlhf_cli.json_values import finite_or_none
from rlhf_cli.numerics.rank_correlation import best_changes, kendall_tau_b
from rlhf_cli.stack.aggregating import Aggregate
from rlhf_cli.stack.reward_metrics import advantage_shares
from rlhf_cli.tables import rollout_columns

LENGTH = "length"
_NOTHING = 1e-3
"""Smaller advantages are rounding errors of a group without deviation, divided by TRL's eps of 1e-4."""

OldNew = tuple[float | None, float | None]
"""A figure before and after; None if undefined."""


@dataclass(frozen=True)
class RoundDifference:
    """How one round would have differed. Undefined figures are None.

    `step` is the first optimizer step that learnt from the round. `num_unknown` rows lack a required score in the log:
    their groups, `num_groups` less `num_answered`, are excluded from everything. `tau` is the mean of Kendall's tau-b
    over the `num_ranked` groups in which both totals differ; `best_changed` and `sign_changed` are shares of groups and
    of rows. `share`, `correlation` and `push` are by component, the latter two also by `length` (tokens).
    `replay_error` is the distance between the stored advantages and those recomputed with the run's own settings. `why`
    is the reason why there are no advantages, or no totals.
    """

    step: int
    num_groups: int
    num_answered: int
    num_unknown: int
    num_ranked: int
    mean_total: OldNew
    tau: float | None
    best_changed: float | None
    sign_changed: float | None
    share: Mapping[str, OldNew]
    correlation: Mapping[str, OldNew]
    push: Mapping[str, OldNew]
    replay_error: float | None
    why: str | None


@dataclass(frozen=True)
class OneSide:
    """One side of the comparison: the settled round, its advantages (N,) or None, and how to compute them."""

    settled: SettledAgain
    advantages: Tensor | None
    recipe: Recipe
    aggregate: Aggregate


def round_difference(
    stored: StoredRound, old: OneSide, new: OneSide, replay_error: float | None, why: str | None
) -> RoundDifference:
    """Return the difference of the round between both sides."""
    # A critic does not compare within groups, so rank all rows of a round together, each answered or not.
    each = stored.num_rows if old.recipe.baseline == "critic" else old.recipe.num_generations
    is_answered = ~new.settled.is_unknown
    answered = is_answered.view(-1, each).any(dim=1)
    has_totals = old.settled.has_totals and new.settled.has_totals
    before, after = (side.settled.compared.masked_fill(~is_answered, torch.nan) for side in (old, new))
    tau = kendall_tau_b(before, after, each)
    ranked = tau[~tau.isnan()]
    changed = best_changes(before, after, each)[answered]
    sides = [side.advantages for side in (old, new)]
    is_both = all(one is not None for one in sides)
    pairs = [None if one is None or not is_both else one[is_answered] for one in sides]
    scored = {name: _tensor(stored.numbers(name)) for name in old.settled.settled.names if name in stored.columns}
    scored |= {
        name: column
        for name, column in zip(new.settled.settled.names, new.settled.settled.raw.double().unbind(1), strict=True)
        if name not in scored
    }
    scored[LENGTH] = _tensor(stored.numbers(rollout_columns.TOKENS))
    by_score = {name: column[is_answered] for name, column in scored.items()}
    return RoundDifference(
        step=stored.step,
        num_groups=len(answered),
        num_answered=int(answered.sum()),
        num_unknown=new.settled.num_unknown,
        num_ranked=len(ranked) if has_totals else 0,
        mean_total=(_mean_total(old, is_answered), _mean_total(new, is_answered)) if has_totals else (None, None),
        tau=_mean(ranked) if has_totals else None,
        best_changed=_mean(changed.double()) if has_totals else None,
        sign_changed=None if pairs[0] is None or pairs[1] is None else _sign_changed(pairs[0], pairs[1]),
        share=_paired(*(_shares(side, is_answered) for side in (old, new))) if is_both else {},
        correlation={name: _of_both(pairs, _correlation, column) for name, column in by_score.items()},
        push={
            name: _of_both(pairs, lambda one, other: push(one, other, each), column)
            for name, column in by_score.items()
        },
        replay_error=replay_error,
        why=why,
    )


def push(advantages: Tensor, scores: Tensor, num_generations: int) -> float | None:
    """Return the covariance above of (N,) advantages and (N,) scores, within groups; None without any score."""
    grouped = scores.view(-1, num_generations)
    centred = (grouped - grouped.nanmean(dim=1, keepdim=True)).view(-1)
    products = (advantages.double() * centred)[~centred.isnan()]
    return _mean(products)


def _of_both(pairs: list[Tensor | None], figure: Callable[[Tensor, Tensor], float | None], column: Tensor) -> OldNew:
    old, new = (None if one is None else figure(one, column) for one in pairs)
    return old, new


def _shares(side: OneSide, is_answered: Tensor) -> dict[str, float]:
    """Return each component's share of the advantages, as logged in training."""
    assert side.advantages is not None
    recipe = side.recipe
    args = {"normalize_advantages": recipe.is_normalized} if recipe.baseline == "others" else {}
    trainer = SimpleNamespace(
        args=SimpleNamespace(**args),
        scale_rewards=recipe.scale,
        reward_clip_range=recipe.clip_range,
        normalize_advantages=recipe.is_normalized,
        beta=recipe.kl_coef,
    )
    settled, each = side.settled, recipe.num_generations
    given = settled.given[is_answered].double()
    if not len(given):
        return {}
    names = settled.settled.names
    advantages = side.advantages[is_answered].double()
    found = advantage_shares(trainer, names, given, side.aggregate, each, advantages)
    return {name.split("/")[1]: share for name, share in found.items()}


def _paired(old: Mapping[str, float], new: Mapping[str, float]) -> dict[str, OldNew]:
    return {name: (old.get(name), new.get(name)) for name in {**old, **new}}


def _sign_changed(old: Tensor, new: Tensor) -> float | None:
    signs = [torch.where(one.abs() > _NOTHING, torch.sign(one), 0.0) for one in (old, new)]
    return _mean((signs[0] * signs[1] < 0).double())


def _correlation(advantages: Tensor, scores: Tensor) -> float | None:
    """Return Pearson's correlation over the rows with a score, or None if one of the two is constant."""
    both = torch.stack([advantages.double(), scores])[:, ~scores.isnan()]
    if both.shape[1] < 2 or not bool((both.std(dim=1) > 0).all()):
        return None
    return float(torch.corrcoef(both)[0, 1])


def _mean_total(side: OneSide, is_answered: Tensor) -> float | None:
    totals = side.settled.settled.row_totals[is_answered]
    return _mean(totals[~totals.isnan()].double())


def _mean(values: Tensor) -> float | None:
    return finite_or_none(float(values.mean())) if values.numel() else None


def _tensor(values: list[float | None]) -> Tensor:
    return torch.tensor([torch.nan if value is None else value for value in values], dtype=torch.float64)
