"""Statistics of `rlhf score`, for a row and for all rows: by hand, and equal to those of pandas and scipy."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from random import Random

import pandas
import pytest
from scipy import stats

from rlhf_cli.errors import DataError
from rlhf_cli.evaluation.score_bench import QUANTILES, correlations, distribution, labels_of, score_bench
from rlhf_cli.rewards.stack.scored_rows import CompletionScores, RewardSummary, ScoredReward, ScoredRow
from rlhf_cli.rewards.stack.token_offsets import ScoredPart

ROWS: list[dict[str, object]] = [
    {"prompt": "q", "completion": "ab", "ok": True},
    {"prompt": "q", "completion": "abcd", "ok": False},
    {"prompt": "r", "completion": "", "ok": None},
]


def with_summary(*totals: float | None, raw: float = 1.0) -> CompletionScores:
    """A reward `one` whose raw score is the total times `raw`, and `two`, which has no scores."""
    rows = [
        ScoredRow(
            total,
            {
                "one": ScoredReward(None if total is None else raw * total, total, total, open=True, error=None),
                "two": ScoredReward(None, None, None, open=False, error=None),
            },
        )
        for total in totals
    ]
    summary = RewardSummary(1.0, 1.0, 1.0, open_fraction=1.0, excluded=0, errors=0, calls=3)
    return CompletionScores(rows, {"one": summary, "two": summary})


def test_what_is_summed_up() -> None:
    """Lengths 2, 4 and 0. The good row has 1 and the bad one 3, so the only pair is in the wrong order."""
    found = score_bench(ROWS, with_summary(1.0, 3.0, None, raw=2.0), label="ok")
    means = {name: one.mean for name, one in found.distributions.items()}
    assert means == {"one": 4.0, "two": None, "total": 2.0, "characters": 2.0}
    assert [(one.first, one.second) for one in found.correlations] == [
        *(("one", "two"), ("one", "total"), ("one", "characters"), ("one", "ok")),
        *(("two", "total"), ("two", "characters"), ("two", "ok")),
        *(("total", "characters"), ("total", "ok"), ("characters", "ok")),
    ]
    assert [one.ranks for one in found.correlations][-3:] == pytest.approx([1.0, -1.0, -1.0])
    assert found.label == "ok"


def test_without_labels_and_totals_there_is_less() -> None:
    unlabelled = score_bench(ROWS, with_summary(1.0, 3.0, 2.0))
    assert unlabelled.label is None
    assert "ok" not in {one.second for one in unlabelled.correlations}
    untotalled = score_bench(ROWS, with_summary(None, None, None), label="ok")
    assert list(untotalled.distributions) == ["one", "two", "characters"]


def test_by_hand() -> None:
    """1, 2, 3, 6: mean 3, squares 4 + 1 + 0 + 9, deviation sqrt(14 / 3); the median halfway between 2 and 3."""
    found = distribution([1.0, None, 2.0, 6.0, 3.0])
    assert (found.count, found.mean) == (4, 3.0)
    assert found.deviation == pytest.approx((14 / 3) ** 0.5)
    assert (found.quantiles["0"], found.quantiles["0.5"], found.quantiles["1"]) == (1.0, 2.5, 6.0)


def test_as_pandas_has_it() -> None:
    random = Random(1)
    values = [random.choice([0.0, 1.0, random.gauss(0, 3)]) for _ in range(200)]
    series = pandas.Series(values)
    found = distribution(values)
    assert [*found.quantiles.values()] == pytest.approx(series.quantile(list(QUANTILES)).tolist(), abs=1e-12)
    assert (found.mean, found.deviation) == pytest.approx((series.mean(), series.std()), rel=1e-12)


def test_nothing_and_one_value() -> None:
    assert (distribution([None]).count, distribution([None]).mean, distribution([]).quantiles) == (0, None, {})
    assert distribution([2.0]).deviation is None


@pytest.mark.parametrize("seed", range(5))
def test_as_scipy_has_it(seed: int) -> None:
    random = Random(seed)
    a: list[float | None] = [random.choice([0.0, 0.5, 1.0, None]) for _ in range(40)]
    b: list[float | None] = [random.gauss(x or 0.0, 1.0) if random.random() > 0.2 else None for x in a]
    (found,) = correlations({"a": a, "b": b})
    both = [(x, y) for x, y in zip(a, b, strict=True) if x is not None and y is not None]
    first, second = zip(*both, strict=True)
    assert found.count == len(both)
    assert found.ranks == pytest.approx(stats.spearmanr(first, second).statistic, abs=1e-12)


def test_of_a_constant_there_is_none() -> None:
    found = correlations({"a": [1.0, 1.0, 1.0], "b": [1.0, 2.0, 3.0], "c": [3.0, 2.0, None]})
    assert [(one.first, one.second, one.ranks) for one in found] == [
        ("a", "b", None),
        ("a", "c", None),
        ("b", "c", pytest.approx(-1.0)),
    ]


def test_labels_as_people_write_them() -> None:
    rows: list[dict[str, object]] = [{"ok": value} for value in (True, 0, "yes", "False", None, "", 1.0, "wrong")]
    assert labels_of(rows, "ok") == [1.0, 0.0, 1.0, 0.0, None, None, 1.0, 0.0]


def test_a_row_may_lack_the_column_the_first_one_too() -> None:
    """JSON lines have the keys that were written: who labels later leaves the key out, which is an empty cell."""
    assert labels_of([{"prompt": "q"}, {"prompt": "q", "ok": True}, {"prompt": "q"}], "ok") == [None, 1.0, None]


def test_what_is_no_label_is_refused() -> None:
    with pytest.raises(DataError) as caught:
        labels_of([{"grade": 1}, {"grade": 3}], "grade")
    assert (caught.value.where, caught.value.got) == ("--label grade, row 2 (the first row is 1)", "3")
    assert caught.value.advice is not None
    with pytest.raises(DataError) as caught:
        labels_of([{"is_correct": 1}, {"other": 1}], "is_corect")
    assert (caught.value.where, caught.value.got) == ("--label", "columns is_correct, other")
    assert caught.value.hint == "is_correct"


def test_as_json() -> None:
    rows = [
        ScoredRow(1.0, {"a": ScoredReward(raw=0.5, effective=0.5, weighted=1.0, open=True, error=None)}),
        ScoredRow(None, {"a": ScoredReward(raw=None, effective=None, weighted=None, open=False, error="no")}),
    ]
    summary = RewardSummary(
        mean=0.5, effective_mean=0.5, weighted_mean=1.0, open_fraction=0.5, excluded=1, errors=0, calls=1
    )
    assert CompletionScores(rows, {}, "for a reason").as_json()["no_total"] == "for a reason"
    scores = CompletionScores(rows, {"a": summary})
    assert json.dumps({"rows": [row.as_json() for row in scores.rows], **scores.as_json()}) == (
        '{"rows": [{"total": 1.0, "rewards": {"a": {"raw": 0.5, "effective": 0.5, "weighted": 1.0, "open": true, '
        '"error": null}}}, {"total": null, "rewards": {"a": {"raw": null, "effective": null, "weighted": null, '
        '"open": false, "error": "no"}}}], "summary": {"a": {"mean": 0.5, "effective_mean": 0.5, "weighted_mean": 1.0, '
        '"open_fraction": 0.5, "excluded": 1, "errors": 0, "calls": 1}}}'
    )


def test_fields_are_those_of_the_dataclass() -> None:
    """Written out field by field for speed; `dataclasses.asdict` says what there is."""
    parts = [ScoredPart(0, 1, "a", 0.5)]
    reward = ScoredReward(raw=0.5, effective=0.25, weighted=1.0, open=True, error=None, parts=parts)
    row = ScoredRow(1.0, {"a": reward, "b": replace(reward, parts=None)})
    expected = asdict(row)
    del expected["rewards"]["b"]["parts"], expected["rewards"]["a"]["parts"][0]["tokens"]
    assert row.as_json() == expected
