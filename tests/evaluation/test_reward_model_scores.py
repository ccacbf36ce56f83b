"""Every figure of a reward model's evaluation for known scores, against numpy, pandas and hand calculations."""

from __future__ import annotations

import math
from typing import Any

import numpy
import pandas
import pytest

from rlhf_cli.errors import DataError
from rlhf_cli.evaluation.reward_model_scores import evaluate_reward_model
from rlhf_cli.evaluation.scored_pairs import RewardModelEvaluation
from rlhf_cli.models.reward_model_scorer import RewardModelScorer
from tests.support.golden_reward_model import save_golden_reward_model
from tests.support.tolerances import MODEL

LOG3 = math.log(3)  # sigmoid(log 3) = 3/4
SCORES = {"x": LOG3, "y": 0.0, "z": -LOG3}


@pytest.fixture(scope="module")
def scorer(tmp_path_factory: pytest.TempPathFactory) -> RewardModelScorer:
    folder = tmp_path_factory.mktemp("golden")
    save_golden_reward_model(folder, SCORES)
    return RewardModelScorer(str(folder), batch_size=3)


def pair(chosen: str, rejected: str, **columns: Any) -> dict[str, Any]:
    return {"prompt": "q:", "chosen": chosen, "rejected": rejected, **columns}


ROWS = [
    pair("ax", "y", kind="a"),  # d = log 3, one token longer
    pair("x", "bby", kind="a"),  # d = log 3, two shorter
    pair("y", "x", kind="b"),  # d = -log 3, as long
    pair("x", "ccz", kind="b"),  # d = 2 log 3, two shorter
]


def test_the_golden_model_scores_as_it_should(scorer: RewardModelScorer, monkeypatch: pytest.MonkeyPatch) -> None:
    scores, lengths = scorer.scored(["q:"] * 4, ["ax", "y", "bbz", "?"])
    assert (scores, lengths) == (pytest.approx([LOG3, 0.0, -LOG3, 0.0], **MODEL), [4, 3, 5, 3])
    monkeypatch.setattr(scorer, "with_eos", True)
    assert scorer.scored(["q:"], ["x"]) == ([pytest.approx(0.0)], [4])


def test_by_hand(scorer: RewardModelScorer) -> None:
    measured = evaluate_reward_model(scorer, ROWS, slices=["kind"])
    # Three of four are right; the bounds are those of Wilson's published formula.
    assert (measured.rows, measured.accuracy.mean, measured.ties) == (4, 0.75, 0)
    assert measured.accuracy.low == pytest.approx(0.3006, abs=1e-4)
    assert measured.accuracy.high == pytest.approx(0.9544, abs=1e-4)
    assert {name: one.mean for name, one in measured.slices["kind"].items()} == {"a": 1.0, "b": 0.5}
    # Confidence 3/4 three times with two right, and 9/10 once, right: 3/4 |2/3 - 3/4| + 1/4 |1 - 9/10|.
    calibration = measured.calibration
    assert calibration.ece == pytest.approx(3 / 4 * (1 / 12) + 1 / 4 * 0.1, **MODEL)
    assert calibration.brier == pytest.approx((2 * 0.25**2 + 0.75**2 + 0.1**2) / 4, **MODEL)
    assert calibration.log_loss == pytest.approx(-(2 * math.log(0.75) + math.log(0.25) + math.log(0.9)) / 4, **MODEL)
    # Rewards log 3 times (1, 0), (1, 0), (0, 1), (1, -1): mean 3/8, margin 3/4.
    rewards = measured.rewards
    assert rewards.mean.mean == pytest.approx(LOG3 * 3 / 8, **MODEL)
    assert rewards.margin.mean == pytest.approx(LOG3 * 3 / 4, **MODEL)
    assert rewards.deviation == pytest.approx(LOG3 * math.sqrt((5 - 8 * (3 / 8) ** 2) / 7), **MODEL)
    assert (rewards.min, rewards.max) == (pytest.approx(-LOG3, **MODEL), pytest.approx(LOG3, **MODEL))
    assert measured.truncated == 0


def test_intervals_are_over_pairs(scorer: RewardModelScorer) -> None:
    """In log 3: the pairs' means 1/2, 1/2, 1/2, 0 deviate by 1/4, their differences 1, 1, -1, 2 by sqrt(4.75 / 3), the
    chosen ones 1, 1, 0, 1 by 1/2, the rejected ones 0, 0, 1, -1 by sqrt(2 / 3); t(3) = 3.18245 over the root of 4.
    """
    rewards = evaluate_reward_model(scorer, ROWS).rewards
    for estimate, mean, deviation in (
        (rewards.mean, 3 / 8, 1 / 4),
        (rewards.margin, 3 / 4, math.sqrt(4.75 / 3)),
        (rewards.chosen, 3 / 4, 1 / 2),
        (rewards.rejected, 0, math.sqrt(2 / 3)),
    ):
        half = 3.18245 * deviation / 2
        assert estimate.count == 4
        assert [estimate.low, estimate.high] == pytest.approx([LOG3 * (mean - half), LOG3 * (mean + half)], rel=1e-4)


def test_pairs_of_one_prompt_are_not_independent(scorer: RewardModelScorer) -> None:
    """Every pair twice says nothing new: the mean's interval is that of the pairs once, the share's not narrower."""
    apart = [{**row, "prompt": f"{number}q:"} for number, row in enumerate(ROWS)]
    once, twice = (evaluate_reward_model(scorer, rows) for rows in (apart, [row for row in apart for _ in range(2)]))
    assert twice.rewards.margin.high == pytest.approx(once.rewards.margin.high, **MODEL)
    assert (twice.rows, twice.accuracy.mean) == (8, once.accuracy.mean)
    assert twice.accuracy.low <= once.accuracy.low
    other = evaluate_reward_model(scorer, [{**row, "prompt": f"{n}q:"} for n, row in enumerate([*ROWS, *ROWS])])
    assert other.rewards.margin.high < twice.rewards.margin.high  # negative control: eight prompts


def test_nor_are_pairs_of_one_prompt_within_a_slice(scorer: RewardModelScorer) -> None:
    """Two prompts, one with two wrong pairs, one with two right ones: the share 1/2 has the variance
    2 / (2 - 1) ((-1)^2 + 1^2) / 4^2 = 1/4, as of one row of two, and t(1) is 12.7062, so that Wilson's bounds solve
    |1/2 - b| = 12.7062 sqrt(b (1 - b)). Pairs with prompts of their own are four rows of two.
    """
    rows = [
        {**row, "prompt": f"{prompt}q:", "kind": kind}
        for kind in ("a", "b")
        for prompt, row in ((1, ROWS[2]), (2, ROWS[3]), (1, ROWS[2]), (2, ROWS[3]))
    ]
    measured = evaluate_reward_model(scorer, rows, slices=["kind"])
    apart = evaluate_reward_model(scorer, [{**row, "prompt": f"{n}q:"} for n, row in enumerate(rows)], slices=["kind"])
    for kind in ("a", "b"):
        found, control = measured.slices["kind"][kind], apart.slices["kind"][kind]
        assert (found.mean, found.count) == (control.mean, control.count) == (0.5, 4)
        for bound in (found.low, found.high):
            assert abs(0.5 - bound) == pytest.approx(12.7062 * math.sqrt(bound * (1 - bound)), rel=1e-4)
        for bound in (control.low, control.high):
            assert abs(0.5 - bound) == pytest.approx(1.959964 * math.sqrt(bound * (1 - bound) / 4), rel=1e-5)


class Known:
    """Given scores in the order of the pairs; `asked` is the list of texts that were scored."""

    def __init__(self, chosen: list[float], rejected: list[float], lengths: list[int] | None = None) -> None:
        self.num_truncated, self.with_eos = 5, False
        self.asked: list[tuple[list[object], list[object]]] = []
        self._scores, self._lengths = [*chosen, *rejected], lengths or [1] * (2 * len(chosen))

    def scored(self, prompts: list[object], completions: list[object]) -> tuple[list[float], list[int]]:
        self.num_truncated += 2
        self.asked.append((prompts, completions))
        return self._scores, self._lengths


def measured_by(scorer: Known, rows: list[dict[str, Any]] | None = None, **named: Any) -> RewardModelEvaluation:
    rows = rows or [{"prompt": f"{n}:", "chosen": "x", "rejected": "y"} for n in range(len(scorer._scores) // 2)]
    return evaluate_reward_model(scorer, rows, **named)  # type: ignore[arg-type]


def test_what_the_scorer_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two pairs in four seconds; the model truncated two of their answers, and five of others before."""
    clock = iter([10.0, 14.0, 20.0, 24.0])
    monkeypatch.setattr("rlhf_cli.evaluation.reward_model_scores.time.perf_counter", lambda: next(clock))
    scorer = Known([1.0, 2.0], [0.0, 0.5])
    rows = [pair("x", "y"), pair("v", "w")]
    plain = measured_by(scorer, rows)
    assert (plain.pairs_per_second, plain.truncated, plain.with_eos) == (0.5, 2, False)
    assert scorer.asked == [(["q:"] * 4, ["x", "v", "y", "w"])]
    scorer.with_eos = True
    assert measured_by(scorer, rows, as_chat=True).with_eos
    chat = [[{"role": "assistant", "content": text}] for text in "xvyw"]
    assert scorer.asked[1] == ([[{"role": "user", "content": "q:"}]] * 4, chat)


def test_a_tie_is_no_success_and_half_a_verdict_and_a_billionth_is_no_tie() -> None:
    """float32 has 1e-7 between two numbers at 1."""
    tied = measured_by(Known([0.5, 1.0], [0.5, 1.0]))
    assert (tied.accuracy.mean, tied.ties, tied.worst, tied.length.pearson) == (0.0, 2, [], None)
    assert tied.calibration.ece == pytest.approx(0.0)
    found = measured_by(Known([1.0 + 1e-9, 1.0], [1.0, 1.0 + 1e-9]))
    assert (found.ties, found.accuracy.mean, [one.row for one in found.worst]) == (0, 0.5, [1])


def test_bins_of_confidence() -> None:
    """Ten from 1/2 to 1. sigmoid(log 3) = 3/4 and sigmoid(log 9) = 9/10 are the lower ends of the sixth and the ninth;
    a little more is added, for an end is held by rounding alone.
    """
    sure, surer = LOG3 + 1e-9, 2 * LOG3 + 1e-9
    found = measured_by(Known([sure, 0.0, surer, 1e9], [0.0, sure, 0.0, 0.0])).calibration
    assert [(one.start, one.end) for one in found.bins] == [
        (pytest.approx(0.5 + place / 20), pytest.approx(0.55 + place / 20)) for place in range(10)
    ]
    filled = {place: one for place, one in enumerate(found.bins) if one.confidence is not None}
    assert {place: (one.accuracy.mean, one.accuracy.count) for place, one in filled.items()} == {
        5: (0.5, 2),
        8: (1, 1),
        9: (1, 1),
    }
    assert [one.confidence for one in filled.values()] == pytest.approx([0.75, 0.9, 1.0])


def test_length_slices_and_the_accuracy_of_length_alone() -> None:
    """Longer by 1, 2, 0, -1, -2: the longer one is right, wrong, tied, right, wrong: in 2.5 of 5."""
    length = measured_by(Known([1, 0, 2, 4, 0], [0, 2, 0, 0, 8], [2, 3, 1, 1, 1, 1, 1, 1, 2, 3])).length
    for one, mean, count, margin in (
        (length.chosen_longer, 0.5, 2, -0.5),
        (length.same, 1.0, 1, 2.0),
        (length.chosen_shorter, 0.5, 2, -2.0),
    ):
        assert (one.mean, one.count, one.margin) == (mean, count, margin)
    assert (length.longer_wins.mean, length.unit) == (0.5, "tokens, chosen minus rejected")
    difference, longer = [1.0, -2.0, 2.0, 4.0, -8.0], [1, 2, 0, -1, -2]
    assert length.pearson == pytest.approx(numpy.corrcoef(difference, longer)[0, 1])
    assert length.spearman == pytest.approx(pandas.Series(difference).corr(pandas.Series(longer), method="spearman"))


def test_the_five_mistakes_of_highest_confidence() -> None:
    """Wrong by 1, 2, 2, 3, 1, 1 and, in the last pair, not at all; of equals the first rows."""
    wrong = [1.0, 2.0, 2.0, 3.0, 1.0, 1.0, 0.0]
    rows = [pair(f"x{n}", f"y{n}", subset=f"s{n}") for n in range(7)]
    worst = measured_by(Known([0.5] * 7, [0.5 + one for one in wrong]), rows).worst
    assert [one.row for one in worst] == [3, 1, 2, 0, 4]
    assert vars(worst[1]) == {
        **{"row": 1, "prompt": "q:", "chosen": "x1", "rejected": "y1", "subset": "s1"},
        **{"reward_chosen": 0.5, "reward_rejected": 2.5, "confidence": pytest.approx(1 / (1 + math.exp(-2)))},
    }


def test_a_slice_column_has_at_most_fifty_values() -> None:
    rows = [{**pair("x", "y"), "prompt": f"{n}:", "kind": f"{50 - n:02}", "text": n} for n in range(51)]
    found = measured_by(Known([1.0] * 50, [0.0] * 50), rows[:50], slices=["kind", "kind"])
    assert list(found.slices["kind"]) == [f"{n:02}" for n in range(1, 51)]
    with pytest.raises(DataError) as caught:
        measured_by(Known([1.0] * 51, [0.0] * 51), rows, slices=["text"])
    assert caught.value.where == "--slice"
    with pytest.raises(DataError) as caught:
        measured_by(Known([1.0], [0.0]), rows[:1], slices=["knd"])
    assert (caught.value.where, caught.value.got) == ("--slice", "columns prompt, chosen, rejected, kind, text")
    assert caught.value.hint == "kind"
