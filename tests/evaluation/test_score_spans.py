"""`rlhf score` on completions whose token ids are known: spans are placed on them, as in training."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlhf_cli.cli import main
from rlhf_cli.models.tiny import byte_tokenizer

REWARDS = """
def spans(completions, **kwargs):
    return [[(0, 1, 1.0), (1, len(text), -0.5)] for text in completions]

def length(completion_ids, **kwargs):
    return [float(len(ids)) for ids in completion_ids]
"""
ONLY = ("score", "+exp=quickstart", "~rewards.correct", "~rewards.format", "~rewards.brevity")
SPANS, LENGTH = "+rewards.spans.fn=./mine.py:spans", "+rewards.length.fn=./mine.py:length"


@pytest.mark.parametrize(
    ("rewards", "has_ids"),
    [((SPANS,), False), ((SPANS,), True), ((SPANS, LENGTH), False)],
    ids=["without tokens", "with those of a file", "with those that another reward counts"],
)
def test_spans_have_their_parts(
    place: Path, capsys: pytest.CaptureFixture[str], rewards: tuple[str, ...], has_ids: bool
) -> None:
    """`rlhf eval` writes ids into its completions, with the end of the sequence behind them: a token without text."""
    (place / "mine.py").write_text(REWARDS)
    tokenizer = byte_tokenizer(64)
    row: dict[str, object] = {"prompt": "1+2=", "completion": "abc"}
    if has_ids:
        row["completion_ids"] = [*tokenizer.encode("abc"), tokenizer.eos_token_id]
    (place / "answers.jsonl").write_text(json.dumps(row) + "\n")
    assert main([*ONLY, *rewards, "--completions", "answers.jsonl", "--json"]) == 0
    scored = json.loads(capsys.readouterr().out)["rows"][0]["rewards"]["spans"]
    assert scored["raw"] == 0.5
    assert [(part["text"], part["reward"]) for part in scored["parts"]] == [("a", 1.0), ("bc", -0.5)]
