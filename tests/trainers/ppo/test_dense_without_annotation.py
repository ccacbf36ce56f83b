"""A reward per token without a return type shows itself in the first round: bootstrap's `replace` is then warned of."""

from __future__ import annotations

from pathlib import Path

import pytest

SOURCE = """
def tokens(completions, completion_ids, **columns):
    return [[float(token % 3) for token in ids] for ids in completion_ids]

def plain(completions, **columns):
    return [float(len(text)) for text in completions]
"""
DENSE = "+rewards.tokens.fn=./mine.py:tokens"
WATCHED = "+rewards.plain={fn: './mine.py:plain', weight: 0}"
COUNTED = "+rewards.plain={fn: './mine.py:plain', weight: 1}"


@pytest.mark.parametrize(
    ("words", "count"),
    [((DENSE,), 1), ((DENSE, WATCHED), 1), ((DENSE, COUNTED), 0), ((COUNTED,), 0), ((DENSE, "truncation.mode=add"), 0)],
    ids=str,
)
def test_it_is_warned_of_once(train_ppo, workplace: Path, words: tuple[str, ...], count: int) -> None:
    (workplace / "mine.py").write_text(SOURCE)
    drop = ("~rewards.correct", "~rewards.format", "~rewards.brevity")
    code, folder = train_ppo(*drop, "truncation=bootstrap", *words)
    assert code == 0
    assert folder.log.read_text().count("every reward is dense") == count
