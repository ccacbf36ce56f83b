"""Estimates what the best of k answers is worth, for every k up to the n that were sampled.

Best of k draws k answers and keeps the one with the highest score. Of n answers with scores s_(1) <= ... <= s_(n) the
mean over all subsets of k is

    Σ_i w_i(k) s_(i),    w_i(k) = C(i - 1, k - 1) / C(n, k) ,

for the i-th is the best of those subsets whose k - 1 others come before it. It is a U-statistic, so unbiased for k
fresh answers, with the least variance of all that are (Hoeffding 1948); the mean of the highest of the first k is
unbiased, too, and far less sure. Other rewards at that pick are weighted in the same order; answers with equal scores
share their weight, as a pick that tosses a coin between them would have it.

The policy that best of k stands for is no further from the one sampled from than

    KL(best of k || policy) <= log k - (k - 1) / k    nats ,

which Stiennon et al. (arXiv 2009.01325, appendix G.3) state as its value and Beirami et al. (arXiv 2401.01879) prove to
be an upper bound: it is the value where no two answers score alike, and more where answers repeat.
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
    """Holds what the best of `k` is worth: the score it is picked by, every reward and the tokens at that pick.

    Estimates are means over prompts with 95 % intervals over prompts, as those of `rlhf eval`. `kl_bound` is in nats.
    """

    k: int
    score: Estimate
    rewards: dict[str, Estimate]
    truncated: Estimate
    kl_bound: float


@dataclass(frozen=True)
class BestOfN:
    """Holds the curve of `prompts` prompts with n answers each, picked by `by`: a reward's raw score or the total.

    `left_out` prompts have an answer without that score: what the best of k of them is worth cannot be said.
    """

    by: str
    curve: list[BestOfK]
    prompts: int
    left_out: int


def best_of_n(prompts: Sequence[SampledPrompt], *, by: str = TOTAL) -> BestOfN:
    """Return the curve for k = 1 .. n; every prompt has n answers. Without a prompt that can be used it is empty."""
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
    """Return (n, n): entry [k - 1, i] is the chance that answer i is the best of k drawn without putting back.

    scores: (n,). Answers with equal scores share theirs; every row sums to 1.
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
    """Return log k - (k - 1) / k, in nats: the most that best of k is away from the policy it samples."""
    return math.log(k) - (k - 1) / k


def _scores(prompt: SampledPrompt, by: str) -> Floats | None:
    scores = [answer.score(by) for answer in prompt.answers]
    known = [score for score in scores if score is not None]
    return np.array(known) if len(known) == len(scores) else None


def _reader(name: str) -> Callable[[SampledAnswer], float | None]:
    return lambda answer: answer.score(name)


def _picked(weights: Floats, values: Sequence[float | None]) -> list[float]:
    """Return the mean of a value at the pick for k = 1 .. n, over those picks that have one; NaN where none has."""
    known = np.array([value is not None for value in values])
    present = np.array([value for value in values if value is not None])
    mass = weights[:, known].sum(axis=1)
    summed = weights[:, known] @ present
    means: list[float] = np.where(mass > 0, summed / np.where(mass > 0, mass, 1.0), np.nan).tolist()
    return means
