"""Verbs print what `rlhf schema VERB` says; those that train are held to it in tests/agents."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from rlhf_cli.cli import main
from rlhf_cli.cli.output_schema import OUTPUTS, output_schema
from rlhf_cli.cli.verbs import VERBS

Said = pytest.CaptureFixture[str]
pytestmark = pytest.mark.usefixtures("place")
QUICKSTART = "+exp=quickstart"


def test_every_verb_has_a_shape() -> None:
    assert set(OUTPUTS) == set(VERBS) - {"completion"}


@pytest.mark.parametrize(
    "words",
    [
        ["check", QUICKSTART],
        ["check", QUICKSTART, "--rows", "2"],
        ["check", "+exp=toy_reward"],
        ["train", "--dry-run", "+exp=toy_ppo"],
        ["list"],
        ["list", "reward", "judge"],
        ["list", "trainer", "grpo"],
        ["list", "exp", "quickstart"],
        ["list", "keys", "rewards"],
        ["list", "metrics", "entropy"],
        ["list", "truncation", "exclude"],
        ["list", "reward", "./mine.py:short"],
        ["score", QUICKSTART, "--completions", "said.jsonl"],
        ["score", QUICKSTART, "--completions", "said.jsonl", "--label", "good"],
        ["audit", QUICKSTART, "rewards.correct.fn=./mine.py:short", "--limit", "4"],
        ["list", "metrics", "kl"],
        ["show", QUICKSTART],
        ["show", QUICKSTART, "--changed"],
        ["audit", QUICKSTART, "--limit", "4"],
        ["doctor"],
        ["init", "here"],
        ["status"],
        ["schema"],
        ["schema", "--out", "a.json"],
    ],
    ids=" ".join,
)
def test_what_is_printed_has_the_shape(words: list[str], place: Path, capsys: Said) -> None:
    (place / "mine.py").write_text("def short(completions, a, **columns):\n    return [1.0 for _ in completions]\n")
    rows = [{"prompt": "1+1=", "a": 1, "b": 1, "answer": "2", "completion": text} for text in ("2", "two", "3")]
    said_by_it = [{**row, "good": row["completion"] == "2"} for row in rows]
    (place / "said.jsonl").write_text("".join(json.dumps(row) + "\n" for row in said_by_it))
    assert main([*words, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert list(Draft202012Validator(output_schema(words[0])).iter_errors(said)) == []


@pytest.mark.parametrize("verb", sorted(set(VERBS) - {"completion"}))
def test_what_is_wrong_has_one_shape(verb: str, capsys: Said) -> None:
    assert main([verb, "--no-such-option", "--json"]) == 2
    said = json.loads(capsys.readouterr().out)
    assert said["problems"][0]["where"] == "command line"
    assert list(Draft202012Validator(output_schema(verb)).iter_errors(said)) == []


def test_a_key_that_is_not_described_is_noticed() -> None:
    validator = Draft202012Validator(output_schema("doctor"))
    printed = {"can_train": True, "conditions": []}
    assert validator.is_valid(printed)
    assert not validator.is_valid({**printed, "more": 1})
    assert not validator.is_valid({"can_train": True})
    condition = dict.fromkeys(("area", "name", "found"), "x") | {"state": "ok", "fix": None, "is_needed": True}
    assert validator.is_valid({**printed, "conditions": [condition]})
    assert not validator.is_valid({**printed, "conditions": [{**condition, "more": 1}]})


@pytest.mark.parametrize("verb", OUTPUTS)
def test_it_is_a_schema(verb: str) -> None:
    Draft202012Validator.check_schema(output_schema(verb))
