"""Which rows speak against their label, counted pair by pair."""

from __future__ import annotations

import pytest

from rlhf_cli.measure.score_bench import score_bench
from rlhf_cli.measure.scored_rows import CompletionScores, ScoredReward, ScoredRow


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
