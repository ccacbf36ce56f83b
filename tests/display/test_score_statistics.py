"""The tables of the bench on narrow terminals: numbers are never cut, they go on in another table."""

from __future__ import annotations

import re

import pytest

from rlhf_cli.display.score_tables import histogram, show_correlations, show_distributions, show_label, show_scores
from rlhf_cli.measure.score_bench import ScoreDistribution, distribution, score_bench
from rlhf_cli.rewards.stack.scored_rows import CompletionScores, RewardSummary, ScoredReward, ScoredRow
from tests.support.terminal import printed

NAMES = [f"a_reward_with_a_long_name_{number}" for number in range(6)]


def scores(names: list[str], num_rows: int = 3) -> CompletionScores:
    def reward(value: float) -> ScoredReward:
        return ScoredReward(raw=value, effective=value, weighted=value, open=True, error=None)

    rows = [
        ScoredRow(float(row), {name: reward(-10.125 - place - row) for place, name in enumerate(names)})
        for row in range(num_rows)
    ]
    return CompletionScores(rows, {name: RewardSummary(-10.125, 1.0, 1.0, 1.0, 0, 0, 3) for name in names})


@pytest.mark.parametrize("width", [80, 120])
def test_no_number_is_cut(width: int) -> None:
    rows: list[dict[str, object]] = [{"prompt": "p", "completion": "some text " * 9, "ok": row > 0} for row in range(3)]
    scored = scores(NAMES)
    bench = score_bench(rows, scored, label="ok")

    def everything(console: object) -> None:
        for show in (show_distributions, show_correlations):
            show(console, bench)  # type: ignore[arg-type]
        show_label(console, bench, rows)  # type: ignore[arg-type]

    text = "\n".join([*printed(lambda console: show_scores(console, rows, scored), width), *printed(everything, width)])
    for place in range(6):
        assert f"{-10.125 - place:.3f}" in text
    assert "a_reward_with_a_long_name_5" in text
    # What is cut is a completion, never a number or a name.
    assert all("some text" in line for line in text.splitlines() if "…" in line)
    assert not re.search(r"\d…", text)


def test_a_histogram_by_hand() -> None:
    """Of bins 4, 0, 1, 2 the tallest bar is for 4; 0 is a blank; 1 of 4 is bar 1.75, rounded 2, of 0 to 7."""
    assert histogram(ScoreDistribution(7, 0.0, 1.0, (), (4, 0, 1, 2), 7)) == "█ ▃▅"
    assert histogram(distribution([1.0, 1.0])) == "all equal"
    assert histogram(distribution([])) == ""
