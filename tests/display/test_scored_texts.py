"""Completions as texts whose parts show what they got."""

from __future__ import annotations

from io import StringIO

from rich.console import Console

from rlhf_cli.display.score_tables import show_parts
from rlhf_cli.rewards.stack.scored_rows import CompletionScores, ScoredReward, ScoredRow
from rlhf_cli.rewards.stack.token_offsets import ScoredPart

PARTS = [ScoredPart(0, 4, "A: 5", -1.0), ScoredPart(5, 9, "B: 7", 1.0)]
DENSE = ScoredReward(0.0, 0.0, 0.0, open=True, error=None, parts=PARTS)
PLAIN = ScoredReward(0.5, 0.5, 0.5, open=True, error=None)
SCORES = CompletionScores([ScoredRow(0.0, {"larger": DENSE}), ScoredRow(0.5, {"larger": PLAIN})], {})
ROWS = [{"completion": "A: 5\nB: 7!"}, {"completion": [{"role": "assistant", "content": "[bold]no markup"}]}]


def shown(*, colours: bool) -> str:
    console = Console(file=StringIO(), width=60, force_terminal=colours, color_system="standard" if colours else None)
    show_parts(console, ROWS, SCORES)
    file = console.file
    assert isinstance(file, StringIO)
    return file.getvalue()


def test_each_part_has_its_reward_behind_it() -> None:
    assert shown(colours=False).splitlines() == [
        *("row 0  total 0.000  (larger 0.000)", "larger", "A: 5[-1]", "B: 7[+1]!", ""),
        *("row 1  total 0.500  (larger 0.500)", "[bold]no markup", ""),
    ]


def test_a_number_that_follows_is_not_read_as_the_reward() -> None:
    """Of 23, 2 got +1 and 3 got -1: `2 +13 -1` says something else."""
    parts = [ScoredPart(0, 1, "2", 1.0), ScoredPart(1, 2, "3", -1.0)]
    reward = ScoredReward(0.0, 0.0, 0.0, open=True, error=None, parts=parts)
    console = Console(file=StringIO(), width=60)
    show_parts(console, [{"completion": "23"}], CompletionScores([ScoredRow(0.0, {"larger": reward})], {}))
    assert isinstance(console.file, StringIO)
    assert "2[+1]3[-1]" in console.file.getvalue().splitlines()
