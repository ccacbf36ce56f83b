"""The tables of `rlhf score` as a person reads them."""

from __future__ import annotations

from rlhf_cli.display.score_tables import show_scores
from rlhf_cli.rewards.stack.scored_rows import CompletionScores, RewardSummary, ScoredReward, ScoredRow
from tests.support.terminal import printed


def reward(raw: float | None, *, is_open: bool = True, error: str | None = None) -> ScoredReward:
    return ScoredReward(raw=raw, effective=raw, weighted=raw, open=is_open, error=error)


def summary(mean: float | None, open_fraction: float, *counts: int) -> RewardSummary:
    excluded, errors, calls = counts
    return RewardSummary(mean, mean, mean and 2 * mean, open_fraction, excluded, errors, calls)


def test_rows_and_summary() -> None:
    rows = [
        {"completion": "yes\n"},
        {"completion": [{"role": "assistant", "content": "z" * 60}]},
        {"completion": "[x]"},
    ]
    scores = CompletionScores(
        [
            ScoredRow(1.5, {"right": reward(1.0), "short": reward(0.25)}),
            ScoredRow(0.0, {"right": reward(0.0), "short": reward(None, is_open=False)}),
            ScoredRow(None, {"right": reward(None, error="boom"), "short": reward(None)}),
        ],
        {"right": summary(0.5, 1.0, 0, 1, 3), "short": summary(None, 2 / 3, 1, 0, 2)},
    )
    assert printed(lambda console: show_scores(console, rows, scores)) == [
        "row  completion                                right  short  total",
        r"  0  yes\n                                     1.000  0.250  1.500",
        f"  1  {'z' * 39}…  0.000   gate  0.000",
        "  2  [x]                                       error      -      -",
        "",
        "all 3 rows   mean  effective  weighted  open  excluded  errors  calls",
        "right       0.500      0.500     1.000  100%         0       1      3",
        "short           -          -         -   67%         1       0      2",
        "rows: raw score; mean: raw, where scored; effective: after offset, clip,",
        "normalise and gate",
    ]


def test_a_narrow_terminal_costs_no_name_and_no_number() -> None:
    """Seven columns of numbers have no room beside the names at 60 characters: they are two tables, each with names."""
    scores = CompletionScores([ScoredRow(1.0, {"right": reward(1.0)})], {"right": summary(0.25, 1.0, 7, 8, 9)})
    lines = printed(lambda console: show_scores(console, [{"completion": "x"}], scores), width=60)
    tables = [line.split() for line in lines if line.startswith("right")]
    assert tables == [["right", "0.250", "0.250", "0.500", "100%", "7"], ["right", "8", "9"]]
    assert max(map(len, lines)) <= 60


def test_why_there_is_no_total() -> None:
    scores = CompletionScores(
        [ScoredRow(None, {"a": reward(1.0)})], {"a": summary(1.0, 1.0, 0, 0, 1)}, "rewards.a.normalize=batch divides"
    )
    lines = printed(lambda console: show_scores(console, [{"completion": "x"}], scores))
    assert lines[1:3] == [
        "  0  x           1.000      -",
        "no row has a total alone: rewards.a.normalize=batch divides",
    ]
