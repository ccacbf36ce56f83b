"""Estimate what the best of k sampled answers is worth.

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

A pair is the best answer to a prompt against the worst, both from the policy itself, as in iterated DPO (Xu et al.,
arXiv 2312.16682, also take the best and worst by a reward). The best answers alone are what RAFT trains on (Dong et
al., arXiv 2304.06767). A truncated answer is never a training target, because a trainer would teach the policy to end
there. An answer without text is not used at all, because no trainer accepts it.
"""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial

import numpy as np
from numpy.typing import NDArray

from rlhf_cli.data.source import Row
from rlhf_cli.numerics.intervals import Estimate, mean_with_interval
from rlhf_cli.rewards.completion_text import Completion, text_of

Floats = NDArray[np.float64]
TOTAL = "total"
"""The score used to pick answers if no reward is named."""


@dataclass(frozen=True)
class SampledAnswer:
    """One answer to a prompt, and its raw rewards; `is_truncated`: the policy did not end it."""

    completion: Completion
    rewards: Mapping[str, float | None]
    total: float | None
    is_truncated: bool

    def score(self, by: str) -> float | None:
        """Return the total, or the raw score of the reward `by`."""
        return self.total if by == TOTAL else self.rewards[by]


@dataclass(frozen=True)
class SampledPrompt:
    """A prompt and its answers, in the order of sampling; `images` holds column -> file names."""

    prompt: object
    answers: Sequence[SampledAnswer]
    images: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class BestOfK:
    """The best of `k`: the mean score it is picked by, and every reward and the truncated share at that pick.

    Means and 95 % intervals are over prompts. `kl_bound` is in nats.
    """

    k: int
    score: Estimate
    rewards: dict[str, Estimate]
    truncated: Estimate
    kl_bound: float


@dataclass(frozen=True)
class BestOfN:
    """The curve for `prompts` prompts. `left_out` counts those with an answer that has no score `by`."""

    by: str
    curve: list[BestOfK]
    prompts: int
    left_out: int


def best_of_n(prompts: Sequence[SampledPrompt], *, by: str = TOTAL) -> BestOfN:
    """Return the curve for k = 1 .. n; every prompt must have n answers. It is empty if no prompt is usable."""
    scores_by_prompt = [(prompt, [answer.score(by) for answer in prompt.answers]) for prompt in prompts]
    scored = [(prompt, pick_weights(np.array(scores))) for prompt, scores in scores_by_prompt if None not in scores]
    if not scored:
        return BestOfN(by, [], 0, len(prompts))
    n = len(scored[0][1])
    names = [name for name in (TOTAL, *scored[0][0].answers[0].rewards) if name != by]

    def curve_of(value: Callable[[SampledAnswer], float | None]) -> list[Estimate]:
        values = [[value(answer) for answer in prompt.answers] for prompt, _ in scored]
        picked = np.array([_picked(weights, row) for (_, weights), row in zip(scored, values, strict=True)])
        usable = ([mean for mean in column if not math.isnan(mean)] for column in picked.T.tolist())
        return [mean_with_interval(means, itertools.chain(*values)) for means in usable]

    scores = curve_of(partial(SampledAnswer.score, by=by))
    rewards = {name: curve_of(partial(SampledAnswer.score, by=name)) for name in names}
    cut_off = curve_of(lambda answer: float(answer.is_truncated))
    curve = [
        BestOfK(k + 1, scores[k], {name: means[k] for name, means in rewards.items()}, cut_off[k], kl_bound(k + 1))
        for k in range(n)
    ]
    return BestOfN(by, curve, len(scored), len(prompts) - len(scored))


def pick_weights(scores: Floats) -> Floats:
    """Return (n, n): entry [k - 1, i] is the probability that answer i is the best of k, by their (n,) scores."""
    weights = np.empty((len(scores), len(scores)))
    weights[:, np.argsort(scores)] = _by_place(len(scores))
    for value in np.unique(scores):
        alike = scores == value
        weights[:, alike] = weights[:, alike].mean(axis=1, keepdims=True)
    return weights


@cache
def _by_place(n: int) -> Floats:
    return np.array([[math.comb(place, k - 1) / math.comb(n, k) for place in range(n)] for k in range(1, n + 1)])


def kl_bound(k: int) -> float:
    """Return log k - (k - 1) / k in nats: the maximum KL of best of k from the policy it samples."""
    return math.log(k) - (k - 1) / k


def _picked(weights: Floats, values: Sequence[float | None]) -> list[float]:
    """Return the mean of a value at the pick for k = 1 .. n, over the picks that have it; NaN if no pick does."""
    known = np.array([value is not None for value in values])
    present = np.array([value for value in values if value is not None])
    mass = weights[:, known].sum(axis=1)
    summed = weights[:, known] @ present
    means: list[float] = np.divide(summed, mass, out=np.full_like(mass, np.nan), where=mass > 0).tolist()
    return means


@dataclass(frozen=True)
class MadeRows:
    """Rows for a trainer, and the prompts that gave none: reason -> number of prompts."""

    rows: list[Row]
    left_out: dict[str, int]


def preference_pairs(prompts: Sequence[SampledPrompt], *, by: str = TOTAL, least_margin: float = 0.0) -> MadeRows:
    """Return at most one preference row per prompt, with a margin above 0 and at least `least_margin`.

    Among equal scores, the first sampled answer is used. A pair that repeats is written once.
    """
    rows: list[Row] = []
    left_out: Counter[str] = Counter()
    seen: set[str] = set()
    for prompt in prompts:
        ranked = _ranked(prompt, by)
        chosen = next((pair for pair in ranked if not pair[1].is_truncated), None)
        if len(ranked) < 2:
            left_out["fewer than two answers have a score and a text"] += 1
        elif chosen is None:
            left_out["no answer is finished"] += 1
        else:
            low = min(score for score, _ in ranked)
            rejected = next(pair for pair in ranked if pair[0] == low)
            margin = chosen[0] - low
            key = _key([prompt.prompt, prompt.images], chosen[1].completion, rejected[1].completion)
            if margin <= 0:
                left_out["the best finished answer scores no higher than the worst"] += 1
            elif margin < least_margin:
                left_out[f"the margin is below {least_margin:g}"] += 1
            elif key in seen:
                left_out["a repeated pair"] += 1
            else:
                seen.add(key)
                answers = {"chosen": chosen[1].completion, "rejected": rejected[1].completion}
                scores = {"margin": margin, "score_chosen": chosen[0], "score_rejected": low}
                rows.append({"prompt": prompt.prompt, **prompt.images, **answers, **scores})
    return MadeRows(rows, dict(left_out))


def best_answers(
    prompts: Sequence[SampledPrompt], *, by: str = TOTAL, keep: int = 1, at_least: float | None = None
) -> MadeRows:
    """Return rows with prompt, completion and score: the `keep` best different answers per prompt, best first.

    Leave out those that score below `at_least`, if given.
    """
    rows: list[Row] = []
    left_out: Counter[str] = Counter()
    seen: set[str] = set()
    for prompt in prompts:
        ranked = _ranked(prompt, by)
        ended = [pair for pair in ranked if not pair[1].is_truncated]
        good = [pair for pair in ended if at_least is None or pair[0] >= at_least]
        new: list[Row] = []
        for score, answer in good:
            key = _key([prompt.prompt, prompt.images], answer.completion)
            if key not in seen and len(new) < keep:
                seen.add(key)
                new.append({"prompt": prompt.prompt, **prompt.images, "completion": answer.completion, "score": score})
        rows += new
        if not ranked:
            left_out["no answer has a score and a text"] += 1
        elif not ended:
            left_out["no answer is finished"] += 1
        elif not good:
            left_out[f"no finished answer scores {at_least:g} or more"] += 1
        elif not new:
            left_out["repeated answers"] += 1
    return MadeRows(rows, dict(left_out))


PASS_RATE = "pass_rate"
"""Column of `with_pass_rates`; `data.keep` and `data.sort` read it."""


def with_pass_rates(
    rows: Sequence[Row], prompts: Sequence[SampledPrompt], *, by: str, at_least: float | None = None
) -> list[Row]:
    """Return the rows with the share of their prompt's answers that score `at_least` (None: 1); None for no scores."""
    passes = 1.0 if at_least is None else at_least
    scores = [[score for answer in prompt.answers if (score := answer.score(by)) is not None] for prompt in prompts]
    return [
        {**row, PASS_RATE: sum(score >= passes for score in some) / len(some) if some else None}
        for row, some in zip(rows, scores, strict=True)
    ]


def _ranked(prompt: SampledPrompt, by: str) -> list[tuple[float, SampledAnswer]]:
    """Return the answers that have a score and a text, best first; equal scores keep the sampling order."""
    with_text = [answer for answer in prompt.answers if text_of(answer.completion).strip()]
    scored = [(score, answer) for answer in with_text if (score := answer.score(by)) is not None]
    return sorted(scored, key=lambda pair: -pair[0])


def _key(*texts: object) -> str:
    return json.dumps(texts, sort_keys=True, default=str)
