"""What `rlhf score` says, as the object that it prints."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

from rlhf_cli.rewards.stack.scored_rows import CompletionScores, RewardSummary, ScoredReward, ScoredRow
from rlhf_cli.rewards.stack.token_offsets import ScoredPart


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
