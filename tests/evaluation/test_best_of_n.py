"""The best of k, against every subset of k and arithmetic on a page; pairs and best answers to train on."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from scipy import stats

from rlhf_cli.evaluation.best_of_n import best_answers, best_of_n, kl_bound, preference_pairs
from rlhf_cli.evaluation.evaluation_results import AnsweredPrompt, PartAnswers, Sample
from rlhf_cli.rewards.stack.scored_rows import ScoredReward, ScoredRow

Prompt = list[Sample]


def sample(
    text: str, rewards: dict[str, float | None], total: float | None, is_cut: bool, *, prompt: object = "q"
) -> Sample:
    scored = {name: ScoredReward(raw, None, None) for name, raw in rewards.items()}
    return AnsweredPrompt({"prompt": prompt}, text, [], is_cut), ScoredRow(total, scored)


def sampled(prompts: Sequence[Prompt]) -> PartAnswers:
    """Pad prompts with fewer answers than the longest by answers without a score."""
    each = max(map(len, prompts))
    nothing = sample("", {"other": None}, None, False)
    rows = [row for prompt in prompts for row in [*prompt, *[nothing] * (each - len(prompt))]]
    return PartAnswers(each, [answer for answer, _ in rows], [scored for _, scored in rows])


def prompt(scores: list[float | None], others: list[float | None] | None = None) -> Prompt:
    others = others or [0.0] * len(scores)
    return [
        sample(f"answer {number}", {"mine": score, "other": other}, score, number == 0)
        for number, (score, other) in enumerate(zip(scores, others, strict=True))
    ]


@pytest.mark.parametrize("scores", [[0.3, -1.0, 2.5, 0.7, 0.1], [1.0, 0.0, 0.0, 1.0, 0.0]], ids=["apart", "ties"])
def test_against_every_subset(scores: list[float]) -> None:
    """The mean over all C(n, k) subsets, ties drawn evenly: a definition, with no order statistics in it."""
    others = [float(number) ** 2 for number in range(len(scores))]
    found = best_of_n(sampled([prompt([*scores], [*others])]), by="mine")
    for k, one in enumerate(found.curve, 1):
        best, other = [], []
        for subset in itertools.combinations(range(len(scores)), k):
            top = max(scores[index] for index in subset)
            best.append(top)
            other.append(np.mean([others[index] for index in subset if scores[index] == top]))
        assert one.score.mean == pytest.approx(np.mean(best), abs=1e-12)
        assert one.rewards["other"].mean == pytest.approx(np.mean(other), abs=1e-12)


def test_unbiased_for_fresh_draws() -> None:
    """The highest of k uniform numbers is k / (k + 1) on average: of 4000 prompts with 6 answers each the curve is
    that within four standard errors. The plug-in estimate, the highest of k drawn with putting back, is not.
    """
    draws = np.random.default_rng(1).uniform(size=(4000, 6))
    found = best_of_n(sampled([prompt([*map(float, row)]) for row in draws]), by="mine")
    for k, one in enumerate(found.curve, 1):
        error = math.sqrt(k / ((k + 1) ** 2 * (k + 2)) / 4000)
        assert one.score.mean == pytest.approx(k / (k + 1), abs=4 * error)
    plugged_in = np.mean([(np.sort(row) * np.diff((np.arange(7) / 6) ** 6)).sum() for row in draws])
    assert abs(plugged_in - 6 / 7) > 4 * math.sqrt(6 / (49 * 8) / 4000)  # negative control


def test_the_interval_is_students_over_prompts() -> None:
    prompts = [prompt([0.0, 1.0]), prompt([0.5, 4.0]), prompt([2.0, 2.5])]
    found = best_of_n(sampled(prompts), by="mine").curve[1].score
    low, high = stats.t.interval(0.95, 2, loc=2.5, scale=stats.sem([1.0, 4.0, 2.5]))
    assert (found.mean, found.low, found.high) == pytest.approx((2.5, low, high))


def test_what_the_pick_is_worth_by_the_others() -> None:
    """Picked by `mine` the best of 2 of these three is answer 1 in two subsets of three, answer 2 in one: the other
    reward is (5 + 5 + 2) / 3 = 4 there and 3 on average; answer 0, which is cut off, is never taken. Where answer 1 has
    the best of 3 has none of it.
    """
    found = best_of_n(sampled([prompt([0.0, 2.0, 1.0], [2.0, 5.0, 2.0])]), by="mine")
    assert [one.rewards["other"].mean for one in found.curve] == pytest.approx([3.0, 4.0, 5.0])
    assert [one.truncated.mean for one in found.curve] == pytest.approx([1 / 3, 0.0, 0.0])
    lacking, beside = (prompt([0.0, 2.0, 1.0], [1.0, of_the_best, 3.0]) for of_the_best in (None, 7.0))
    others = [point.rewards["other"] for point in best_of_n(sampled([lacking]), by="mine").curve]
    assert [(one.mean, one.count) for one in others] == [(2.0, 1), (3.0, 1), (None, 0)]
    of_both = best_of_n(sampled([lacking, beside]), by="mine").curve[2].rewards["other"]
    assert (of_both.mean, of_both.count) == (7.0, 1)


def test_picked_by_the_total_or_by_a_reward() -> None:
    """The total prefers answer 0, the reward answer 1; what the pick goes by is not told once more."""
    both = sampled([[sample("a", {"r": 1.0}, 5.0, False), sample("b", {"r": 3.0}, 2.0, True)]])
    for given, name, score, rewards, cut in (
        ({}, "total", 5.0, {"r": 1.0}, 0.0),
        ({"by": "r"}, "r", 3.0, {"total": 2.0}, 1.0),
    ):
        found = best_of_n(both, **given)
        _, best = found.curve
        assert (found.by, best.k, best.score.mean, best.truncated.mean) == (name, 2, score, cut)
        assert {name: one.mean for name, one in best.rewards.items()} == rewards
        assert best.kl_bound == pytest.approx(math.log(2) - 1 / 2)


def test_prompts_without_all_scores_are_left_out_and_counted() -> None:
    found = best_of_n(sampled([prompt([1.0, 3.0]), prompt([None, 9.0])]), by="mine")
    assert (found.left_out, found.curve[1].score.mean) == (1, 3.0)
    nothing = best_of_n(sampled([prompt([None, 9.0])]), by="mine")
    assert (nothing.curve, nothing.left_out) == ([], 1)


@pytest.mark.parametrize("k", [1, 2, 4, 64])
def test_the_bound_is_the_divergence_of_a_continuous_score(k: int) -> None:
    """With scores uniform on [0, 1] the best of k has the density k u^(k-1), so KL = ∫ k u^(k-1) log(k u^(k-1)) du,
    here by quadrature.
    """
    u = (np.arange(2_000_000) + 0.5) / 2_000_000
    density = k * u ** (k - 1)
    # u^63 underflows to 0 at the left end, where x log x is 0
    integrand = np.where(density > 0, density * np.log(np.maximum(density, 1e-300)), 0.0)
    assert kl_bound(k) == pytest.approx(integrand.mean(), abs=1e-6)


def answers(*answers: tuple[str, float | None] | tuple[str, float | None, bool], text: object = "q") -> Prompt:
    """Return samples of (text, total, is it cut off), whose reward `other` is the total's opposite."""

    def made(text_of: str, score: float | None, is_cut: bool = False) -> Sample:
        return sample(text_of, {"other": None if score is None else -score}, score, is_cut, prompt=text)

    return [made(*one) for one in answers]


def rows_of(prompts: Sequence[Prompt]) -> list[dict[str, Any]]:
    return [dict(samples[0][0].row) for samples in prompts]


EQUAL, CUT = "the best finished answer scores no higher than the worst", "no answer is finished"
FEW, NONE = "fewer than two answers have a score and a text", "no answer has a score and a text"
TWICE, SLIGHT = answers(("a", 0.5), ("b", 0.0)), answers(("a", 1.0), ("b", 0.6), text="r")


@pytest.mark.parametrize(
    ("prompts", "least_margin", "rows", "left_out"),
    [
        (
            [answers(("a", 0.5), ("b", 2.0), ("c", -1.0), ("d", 2.0), ("e", -1.0))],
            0.0,
            [("q", "b", "c", 2.0, -1.0)],
            {},
        ),
        # What is cut off is rejected and never chosen; what has no text is neither.
        ([answers(("a", 3.0, True), ("b", 2.0), ("c", 1.0, True))], 0.0, [("q", "b", "c", 2.0, 1.0)], {}),
        ([answers((" ", 9.0), ("a", 2.0), ("b", 1.0), ("", -9.0))], 0.0, [("q", "a", "b", 2.0, 1.0)], {}),
        ([answers(("a", 3.0, True), ("c", 1.0)), answers(("a", 1.0), ("b", 1.0))], 0.0, [], {EQUAL: 2}),
        ([answers(("a", 3.0, True), ("b", 1.0, True)), answers(("a", None), ("b", 1.0))], 0.0, [], {CUT: 1, FEW: 1}),
        # The least margin is inclusive.
        ([TWICE, SLIGHT], 0.5, [("q", "a", "b", 0.5, 0.0)], {"the margin is below 0.5": 1}),
        ([TWICE, TWICE, SLIGHT], 0.0, [("q", "a", "b", 0.5, 0.0), ("r", "a", "b", 1.0, 0.6)], {"a repeated pair": 1}),
    ],
)
def test_pairs(prompts: list[Prompt], least_margin: float, rows: list[Any], left_out: dict[str, int]) -> None:
    """(prompt, chosen, rejected, score of either): the best against the worst, of equals the first."""
    made = preference_pairs(rows_of(prompts), sampled(prompts), by="total", least_margin=least_margin)
    assert made.left_out == left_out
    assert made.rows == [
        {
            **{"prompt": text, "chosen": chosen, "rejected": rejected},
            **{"margin": high - low, "score_chosen": high, "score_rejected": low},
        }
        for text, chosen, rejected, high, low in rows
    ]


LOW = "no finished answer scores 1 or more"


@pytest.mark.parametrize(
    ("prompts", "given", "rows", "left_out"),
    [
        ([answers(("a", 1.0), ("b", 3.0), ("b", 3.0), ("c", 2.0))], {"keep": 2}, [("b", 3.0), ("c", 2.0)], {}),
        ([answers(("a", 0.5), ("b", 2.0))], {"by": "other"}, [("a", -0.5)], {}),
        ([answers(("a", 1.0), ("b", 5.0, True), ("c", 0.0))], {"keep": 3, "at_least": 1.0}, [("a", 1.0)], {}),
        (
            [answers(("a", 3.0, True))] * 2 + [answers((" ", 3.0), ("b", None)), answers(("a", 0.5), ("b", 9.0, True))],
            *({"at_least": 1.0}, [], {CUT: 2, NONE: 1, LOW: 1}),
        ),
        # A prompt that comes again adds what is new.
        ([TWICE, TWICE, answers(("a", 1.0))], {}, [("a", 0.5), ("b", 0.0)], {"repeated answers": 1}),
    ],
)
def test_best_answers(prompts: list[Prompt], given: Any, rows: list[Any], left_out: dict[str, int]) -> None:
    made = best_answers(rows_of(prompts), sampled(prompts), **{"by": "total", "keep": 1, "at_least": None, **given})
    assert made.left_out == left_out
    assert made.rows == [{"prompt": "q", "completion": text, "score": score} for text, score in rows]


def test_rows_have_the_prompt_that_was_answered() -> None:
    """An environment adds to a row's prompt; answers to two prompts are no pair."""
    two = [
        [sample(text, {}, score, False, prompt=seen) for text, score, seen in answers]
        for answers in ([("a", 2.0, "q: 1"), ("b", 1.0, "q: 1")], [("c", 2.0, "q: 2"), ("d", 1.0, "q: 3")])
    ]
    made = preference_pairs([{"prompt": "q"}] * 2, sampled(two), by="total", least_margin=0.0)
    assert ([row["prompt"] for row in made.rows], [*made.left_out.values()]) == (["q: 1"], [1])
    best = best_answers([{"prompt": "q"}] * 2, sampled(two), by="total", keep=1, at_least=None)
    assert [row["prompt"] for row in best.rows] == ["q: 1", "q: 2"]
