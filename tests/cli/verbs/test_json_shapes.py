"""The JSON of every verb has the keys of docs/reference/json.md; tests/agents tests those that train."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlhf_cli.cli import main
from rlhf_cli.cli.verbs import VERBS
from tests.support.json_shapes import described, is_described

Said = pytest.CaptureFixture[str]
pytestmark = pytest.mark.usefixtures("place")
QUICKSTART = "+exp=quickstart"


def test_every_verb_is_described() -> None:
    assert set(described()) == set(VERBS) - {"completion"}


@pytest.mark.parametrize(
    "words",
    [
        *(["check", QUICKSTART], ["check", QUICKSTART, "--rows", "2"], ["train", "--dry-run", "+exp=toy_ppo"]),
        *(["list", "reward", "judge"], ["list", "trainer", "grpo"], ["list", "exp", "quickstart"]),
        *(["list", "keys", "rewards"], ["list", "metrics", "entropy"], ["show", QUICKSTART, "--changed"]),
        ["score", QUICKSTART, "--completions", "said.jsonl", "--label", "good"],
        *(["audit", QUICKSTART, "--limit", "4"], ["doctor"], ["init", "here"], ["status"]),
        ["schema", "--out", "a.json"],
    ],
    ids=" ".join,
)
def test_the_printed_json_has_the_documented_keys(words: list[str], place: Path, capsys: Said) -> None:
    rows = [{"prompt": "1+1=", "a": 1, "b": 1, "answer": "2", "completion": text} for text in ("2", "two", "3")]
    said_by_it = [{**row, "good": row["completion"] == "2"} for row in rows]
    (place / "said.jsonl").write_text("".join(json.dumps(row) + "\n" for row in said_by_it))
    assert main([*words, "--json"]) == 0
    assert is_described(words[0], json.loads(capsys.readouterr().out))


@pytest.mark.parametrize("verb", sorted(set(VERBS) - {"completion"}))
def test_problems_have_the_same_keys_in_every_verb(verb: str, capsys: Said) -> None:
    assert main([verb, "--no-such-option", "--json"]) == 2
    said = json.loads(capsys.readouterr().out)
    assert said["problems"][0]["where"] == "command line"
    assert set(said["problems"][0]) == {"kind", "what", "where", "got", "expected", "try", "advice"}


def test_negative_control_an_undocumented_key() -> None:
    printed = {"can_train": True, "conditions": []}
    assert is_described("doctor", printed)
    assert not is_described("doctor", {**printed, "more": 1})
    assert not is_described("doctor", {"can_train": True})
