"""Estimate the score of the best of k answers, for every k up to the n that were sampled.

Best of k draws k answers and keeps the one with the highest score. With n sorted scores s_(1) <= ... <= s_(n), the mean
over all subsets of size k is

    Σ_i w_i(k) s_(i),    w_i(k) = C(i - 1, k - 1) / C(n, k) ,

because answer i is the best of those subsets whose other k - 1 members come before it. This is a U-statistic: it is
unbiased for k fresh answers, with the least variance among unbiased estimators (Hoeffding 1948). The maximum of the
first k answers is also unbiased, but far noisier. The other rewards at that pick use the same weights. Answers with
equal scores share their weight, like a pick that breaks ties at random.

The policy that best of k represents differs from the sampled one by at most

    KL(best of k || policy) <= log k - (k - 1) / k    nats .

Stiennon et al. (arXiv 2009.01325, appendix G.3) state this as its value; Beirami et al. (arXiv 2401.01879) prove that
it is an upper bound. It is the exact value if no two answers score alike, and too high if answers repeat.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from rlhf_cli.numerics.intervals import Estimate, mean_with_interval
from rlhf_cli.sampling.sampled_answers import TOTAL, SampledAnswer, SampledPrompt

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class BestOfK:
    """The best of `k`: the mean score it is picked by, and every reward and the truncated share at that pick.

    Estimates are means over prompts with 95 % intervals over prompts, as in `rlhf eval`. `kl_bound` is in nats.
    """

    k: int
    score: Estimate
    rewards: dict[str, Estimate]
    truncated: Estimate
    kl_bound: float


@dataclass(frozen=True)
class BestOfN:
    """The curve for `prompts` prompts with n answers each.

    `by` is the score used to pick: a reward's raw score or the total. `left_out` counts prompts with an answer that has
    no such score; best of k is undefined for them.
    """

    by: str
    curve: list[BestOfK]
    prompts: int
    left_out: int


def best_of_n(prompts: Sequence[SampledPrompt], *, by: str = TOTAL) -> BestOfN:
    """Return the curve for k = 1 .. n; every prompt must have n answers. It is empty if no prompt is usable."""
    scored = [(prompt, pick_weights(scores)) for prompt in prompts if (scores := _scores(prompt, by)) is not None]
    if not scored:
        return BestOfN(by, [], 0, len(prompts))
    n = len(scored[0][1])
    names = [name for name in (TOTAL, *scored[0][0].answers[0].rewards) if name != by]

    def curve_of(value: Callable[[SampledAnswer], float | None]) -> list[Estimate]:
        picked = [_picked(weights, [value(answer) for answer in prompt.answers]) for prompt, weights in scored]
        return [
            mean_with_interval([one for one in column if not math.isnan(one)]) for column in np.array(picked).T.tolist()
        ]

    scores_of = curve_of(lambda answer: answer.score(by))
    rewards_of = {name: curve_of(_reader(name)) for name in names}
    cut_off = curve_of(lambda answer: float(answer.is_truncated))
    curve = [
        BestOfK(
            k=k,
            score=scores_of[k - 1],
            rewards={name: estimates[k - 1] for name, estimates in rewards_of.items()},
            truncated=cut_off[k - 1],
            kl_bound=kl_bound(k),
        )
        for k in range(1, n + 1)
    ]
    return BestOfN(by, curve, len(scored), len(prompts) - len(scored))


def pick_weights(scores: Floats) -> Floats:
    """Return (n, n): entry [k - 1, i] is the probability that answer i is the best of k drawn without replacement.

    `scores` is (n,). Answers with equal scores share their probability; every row sums to 1.
    """
    weights = np.empty((len(scores), len(scores)))
    weights[:, np.argsort(scores)] = _by_place(len(scores))
    for value in np.unique(scores):
        alike = scores == value
        weights[:, alike] = weights[:, alike].mean(axis=1, keepdims=True)
    return weights


@cache
def _by_place(n: int) -> Floats:
    """Return (n, n): w_i(k) at [k - 1, i - 1]."""
    return np.array([[math.comb(place, k - 1) / math.comb(n, k) for place in range(n)] for k in range(1, n + 1)])


def kl_bound(k: int) -> float:
    """Return log k - (k - 1) / k in nats: the maximum KL of best of k from the policy it samples."""
    return math.log(k) - (k - 1) / k


def _scores(prompt: SampledPrompt, by: str) -> Floats | None:
    scores = [answer.score(by) for answer in prompt.answers]
    known = [score for score in scores if score is not None]
    return np.array(known) if len(known) == len(scores) else None


def _reader(name: str) -> Callable[[SampledAnswer], float | None]:
    return lambda answer: answer.score(name)


def _picked(weights: Floats, values: Sequence[float | None]) -> list[float]:
    """Return the mean of a value at the pick for k = 1 .. n, over the picks that have it; NaN if no pick does."""
    known = np.array([value is not None for value in values])
    present = np.array([value for value in values if value is not None])
    mass = weights[:, known].sum(axis=1)
    summed = weights[:, known] @ present
    means: list[float] = np.where(mass > 0, summed / np.where(mass > 0, mass, 1.0), np.nan).tolist()
    return means
