"""The table of scored pairs, as a terminal shows it."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from rlhf_cli.display.pair_table import pair_table
from rlhf_cli.measure.scored_pairs import ScoredPair


def pair(**values: Any) -> ScoredPair:
    given = {"step": 1, "row": 1, "prompt": "p", "chosen": "c", "rejected": "r", "margin": None}
    return ScoredPair(**{**given, "score_chosen": 1.0, "score_rejected": 0.0, **values})


def printed(pairs: list[ScoredPair], width: int = 100) -> str:
    console = Console(width=width, file=io.StringIO())
    with console.capture() as captured:
        console.print(pair_table(pairs))
    return captured.get()


def test_the_table_has_the_prompts_end_and_a_margin_where_there_is_one() -> None:
    long = pair(prompt="\n\nHuman: " + "x" * 50 + " why?\n\nAssistant:", chosen="a\nb" * 40, margin=0.25)
    shown = printed([long, pair(score_chosen=0.0)])
    assert "step 1: 1 of 2 pairs in the right order" in shown
    assert "x why?" in shown
    assert "Human" not in shown
    assert "0.250" in shown
    assert "tie" in shown
    assert "margin" not in printed([pair()])
    narrow = printed([long], width=80).splitlines()
    assert len(narrow) == 3
    assert narrow[2].split()[-2:] == ["0.250", "right"]
