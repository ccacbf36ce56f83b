"""Which rows speak against their label, counted pair by pair."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from rlhf_cli.measure.score_bench import score_bench
from rlhf_cli.rewards.stack.scored_rows import CompletionScores, RewardSummary, ScoredReward, ScoredRow


def scored(*totals: float | None) -> CompletionScores:
    rows = [
        ScoredRow(total, {"one": ScoredReward(raw=total, effective=total, weighted=total, open=True, error=None)})
        for total in totals
    ]
    return CompletionScores(rows=rows, summary={})


@pytest.mark.parametrize(
    ("totals", "labels", "rows"),
    [
        # The good row 0 gets less than the bad row 3, and both are told; row 1 is above every bad one.
        ([1.0, 3.0, 0.0, 2.0], [True, True, False, False], [0, 3]),
        ([1.0, 2.0, 1.0, 0.0], [True, True, False, False], []),  # 1 and 1 are a tie: neither speaks against its label
        ([1.0, None, 2.0, 5.0], [True, False, False, None], [0, 2]),  # without a total or a label it has no part
        ([1.0, 2.0], [True, True], []),
    ],
)
def test_rows_that_speak_against_their_label(
    totals: list[float | None], labels: list[bool | None], rows: list[int]
) -> None:
    content: list[dict[str, object]] = [{"prompt": "q", "completion": "a", "ok": label} for label in labels]
    assert score_bench(content, scored(*totals), label="ok").disagreeing == rows


def test_at_most_three_of_each_side_the_farthest_first() -> None:
    """Good ones with 0 to 4, bad ones with 5 to 9: the three lowest good, the three highest bad."""
    content: list[dict[str, object]] = [{"completion": "a", "ok": row < 5} for row in range(10)]
    totals = [3.0, 1.0, 4.0, 0.0, 2.0, 5.0, 9.0, 7.0, 6.0, 8.0]
    assert score_bench(content, scored(*totals), label="ok").disagreeing == [3, 1, 4, 6, 9, 7]


ROWS: list[dict[str, object]] = [
    {"prompt": "q", "completion": "ab", "ok": True},
    {"prompt": "q", "completion": "abcd", "ok": False},
    {"prompt": "r", "completion": "", "ok": None},
]


def with_summary(*totals: float | None, raw: float = 1.0) -> CompletionScores:
    """A reward `one` whose raw score is the total times `raw`, `two` that nobody has."""
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
    """Lengths 2, 4 and 0; the good row has 1, the bad one 3: of one pair none is in order."""
    found = score_bench(ROWS, with_summary(1.0, 3.0, None, raw=2.0), label="ok")
    means = {name: one.mean for name, one in found.distributions.items()}
    assert means == {"one": 4.0, "two": None, "total": 2.0, "characters": 2.0}
    assert [(one.first, one.second) for one in found.correlations] == [
        *(("one", "two"), ("one", "total"), ("one", "characters"), ("one", "ok")),
        *(("two", "total"), ("two", "characters"), ("two", "ok")),
        *(("total", "characters"), ("total", "ok"), ("characters", "ok")),
    ]
    assert [one.linear for one in found.correlations][-3:] == pytest.approx([1.0, -1.0, -1.0])
    assert {one.name: one.roc_auc for one in found.agreements} == {"one": 0.0, "two": None, "total": 0.0}
    assert (found.label, found.disagreeing) == ("ok", [0, 1])


def test_without_labels_and_totals_there_is_less() -> None:
    unlabelled = score_bench(ROWS, with_summary(1.0, 3.0, 2.0))
    assert (unlabelled.label, unlabelled.agreements, unlabelled.disagreeing) == (None, [], [])
    assert "ok" not in {one.second for one in unlabelled.correlations}
    untotalled = score_bench(ROWS, with_summary(None, None, None), label="ok")
    assert list(untotalled.distributions) == ["one", "two", "characters"]
    assert untotalled.disagreeing == []


def test_as_json() -> None:
    scores = with_summary(1.0, 3.0, None)
    bench = score_bench(ROWS, scores, label="ok")
    content = bench.as_json(ROWS, scores)
    assert list(content) == ["rows", "summary", "distributions", "correlations", "label"]
    assert list(content["rows"]) == [  # type: ignore[call-overload]
        {"prompt": row["prompt"], "completion": row["completion"], "label": row["ok"], **one.as_json()}
        for row, one in zip(ROWS, scores.rows, strict=True)
    ]
    assert content["distributions"] == {name: one.as_json() for name, one in bench.distributions.items()}
    assert content["correlations"] == [asdict(one) for one in bench.correlations]
    assert content["label"] == {
        **{"column": "ok", "agreements": [asdict(one) for one in bench.agreements], "disagreeing_rows": [0, 1]}
    }
    plain = score_bench(ROWS, scores).as_json(ROWS, scores)
    assert list(plain) == ["rows", "summary", "distributions", "correlations"]
    assert [list(row)[:2] for row in plain["rows"]] == [["prompt", "completion"]] * 3  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="shorter"):
        list(bench.as_json(ROWS, scored(1.0))["rows"])  # type: ignore[call-overload]
