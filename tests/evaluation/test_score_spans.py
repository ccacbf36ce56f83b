"""`rlhf score`: what a reward is called with, and spans on completions whose token ids are known, as in training."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlhf_cli.cli import main
from rlhf_cli.evaluation.score_completions import score
from rlhf_cli.models.tiny import byte_tokenizer
from rlhf_cli.plan.prepare import prepare

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


WAITING = """
def called(name, completions):
    with open("calls.txt", "a") as file:
        print(name, len(completions), file=file)

def plain(completions, **columns):
    called("plain", completions)
    return [float(text[:4]) for text in completions]

def gated(completions, **columns):
    called("gated", completions)
    return [1.0 for _ in completions]

async def waits(completions, **columns):
    called("waits", completions)
    return [2.0 for _ in completions]
"""


def test_a_reward_is_called_once_with_all_rows_it_is_open_for(place: Path) -> None:
    (place / "mine.py").write_text(WAITING)
    rewards = [f"rewards.{name}.fn=./mine.py:{name}" for name in ("plain", "gated", "waits")]
    gate = "rewards.gated.gate={by: plain, at_least: 10, otherwise: exclude}"
    experiment = prepare([*ONLY[1:], *rewards, gate]).experiment
    score(experiment, [{"prompt": f"{row // 4}?", "completion": f"{row:04} is it"} for row in range(500)])
    assert sorted((place / "calls.txt").read_text().splitlines()) == ["gated 490", "plain 500", "waits 500"]
