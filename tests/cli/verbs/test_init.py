"""`rlhf init`: flags, refusals, JSON."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlhf_cli.cli import main
from tests.support.model_copies import model_copy

Said = pytest.CaptureFixture[str]
Write = Callable[[str, str], Path]
KEYS = {"folder", "files", "trains", "model", "data", "rename", "next"}


def test_json_lists_the_written_files(place: Path, write: Write, capsys: Said) -> None:
    write("my pairs.jsonl", '{"question": "a", "better": "b", "worse": "c"}\n')
    words = ["--trains", "dpo", "--data", "my pairs.jsonl", "--json"]
    assert main(["init", "my project", *words]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (set(said), said["folder"]) == (KEYS, str(place / "my project"))
    assert (said["trains"], said["model"], said["data"]) == ("dpo", "tiny", "../my pairs.jsonl")
    assert said["rename"] == {"prompt": "question", "chosen": "better", "rejected": "worse"}
    assert said["next"][0] == "cd 'my project'"
    there = {str(p.relative_to(place / "my project")) for p in (place / "my project").rglob("*") if p.is_file()}
    assert there == set(said["files"])


def experiment_of(file: Path) -> dict[str, Any]:
    return dict(yaml.safe_load(file.read_text()))


def test_nothing_is_overwritten_and_a_second_experiment_is_added(place: Path, capsys: Said) -> None:
    """The second experiment uses the rewards of the first, and the user's README stays."""
    (place / "README.md").write_text("mine")
    assert main(["init"]) == 0
    before = {file: file.read_text() for file in place.rglob("*") if file.is_file()}
    capsys.readouterr()
    assert main(["init", "--trains", "ppo", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["files"] == ["conf/exp/second.yaml"]
    assert said["next"] == ["rlhf check +exp=second", "rlhf train +exp=second"]
    assert (before[place / "README.md"], {file: file.read_text() for file in before}) == ("mine", before)
    assert experiment_of(place / "conf/exp/second.yaml")["rewards"]["brief"]["fn"] == "./rewards.py:brief"
    assert main(["check", "+exp=second", "--json"]) == 0


def test_the_rewards_of_the_user_are_used(place: Path, capsys: Said) -> None:
    """Only those that fit the data: `graded` reads a missing column, `strict` needs an argument."""
    theirs = (
        "def polite(completions, answer, **columns):\n    return [1.0 for _ in completions]\n"
        "def graded(completions, grade, **columns): ...\n"
        "def strict(completions, *, least, **columns): ...\n"
        "def helper(text): ...\n"
    )
    (place / "rewards.py").write_text(theirs)
    assert main(["init"]) == 0
    assert (place / "rewards.py").read_text() == theirs
    assert not (place / "test_rewards.py").exists()
    rewards = experiment_of(place / "conf/exp/first.yaml")["rewards"]
    assert rewards == {"polite": {"fn": "./rewards.py:polite", "weight": 1.0}}
    assert "plain" not in (place / "AGENTS.md").read_text()
    assert main(["check", "+exp=first"]) == 0


def test_a_rewards_file_without_rewards_is_left_alone(place: Path, capsys: Said) -> None:
    (place / "rewards.py").write_text("def helper(text): ...\n")
    assert main(["init"]) == 0
    said = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines() if "_rewards.py" in line)
    assert "pytest" in said["test_first_rewards.py"]
    assert "pytest" not in said["first_rewards.py"]
    assert (place / "rewards.py").read_text() == "def helper(text): ...\n"
    rewards = experiment_of(place / "conf/exp/first.yaml")["rewards"]
    assert {entry["fn"] for entry in rewards.values()} == {f"./first_rewards.py:{n}" for n in ("correct", "brief")}
    assert "from first_rewards import" in (place / "test_first_rewards.py").read_text()
    assert main(["check", "+exp=first"]) == 0


def test_paths_are_relative_if_they_were_typed_so(place: Path, write: Write) -> None:
    """The project is in another folder or here; an absolute path stays absolute."""
    write("data/sums.csv", "question,answer\n" + "1+1=,2\n" * 50)
    for folder, typed, written in (
        ("a", "data/sums.csv", "../data/sums.csv"),
        ("b/c", "./data/sums.csv", "../../data/sums.csv"),
        ("d", str(place / "data" / "sums.csv"), str(place / "data" / "sums.csv")),
        (".", "data/sums.csv", "./data/sums.csv"),
    ):
        assert main(["init", folder, "--data", typed]) == 0
        assert experiment_of(place / folder / "conf/exp/first.yaml")["data"]["path"] == written


WORDS = "question,answer\n" + "How many apples has Tom?,3\n" * 50


def test_rows_that_the_tiny_model_cannot_learn(place: Path, write: Write, capsys: Said) -> None:
    """The output offers a command with a real model, but not for sums."""
    write("words.csv", WORDS)
    write("sums.csv", "question,answer\n" + "12 + 5 =,17\n" * 50)
    assert main(["init", "--data", "sums.csv"]) == 0
    assert "smollm2" not in capsys.readouterr().out
    assert main(["init", "--data", "words.csv"]) == 0
    offered = capsys.readouterr().out.splitlines()[-1].strip()
    assert offered == "rlhf init --data words.csv --model smollm2"
    assert main(shlex.split(offered)[1:]) == 0
    third = experiment_of(place / "conf/exp/third.yaml")
    assert {"override /model": "smollm2"} in third["defaults"]
    assert third["data"]["prompt"] == [{"role": "user", "content": "{prompt}"}]
    assert third["trainer"]["args"]["learning_rate"] == 1e-6


def test_rows_of_another_training(write: Write, capsys: Said) -> None:
    write("chat.jsonl", '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}\n')
    write("pairs.jsonl", '{"chosen": "a", "rejected": "b"}\n')
    for file, hint in (("chat.jsonl", "--trains sft"), ("pairs.jsonl", "--trains dpo")):
        words = ["init", "p", "--data", file]
        assert main(words) == 2
        assert f"try:      {hint}\n" in capsys.readouterr().err
        assert main([*words, *hint.split()]) == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--trains", "gpro"], "--trains grpo"),
        (["--model", "./nowhere"], "no such model folder"),
        (["--data", "nowhere.csv"], "no such file"),
        (["--column", "prompt"], "--column is ROLE=COLUMN"),
        (["--train", "dpo"], "--trains"),
        (["my", "new project"], "init takes one folder"),
    ],
)
def test_refusals_write_nothing(words: list[str], said: str, place: Path, capsys: Said) -> None:
    assert main(["init", *words]) == 2
    assert said in capsys.readouterr().err
    assert list(place.iterdir()) == []


def test_a_chat_models_prompts_are_messages(place: Path, write: Write) -> None:
    """Otherwise TRL would pass plain text, which a chat model was not trained on."""
    model_copy(place / "model")
    model_copy(place / "chat", tokenizer_config={"chat_template": "{{ messages }}"}, without=("chat_template.jinja",))
    write("rows.csv", "question,answer\n" + "1+1?,2\n" * 50)
    words = ["init", "p", "--data", "rows.csv", "--column", "prompt=question", "--model"]
    assert main([*words, "./chat"]) == 0
    experiment = yaml.safe_load((place / "p/conf/exp/first.yaml").read_text())
    assert experiment["data"]["prompt"] == [{"role": "user", "content": "{prompt}"}]
    for model in ("tiny", "./model"):  # these have a template but were trained on plain texts
        assert main(["init", f"of-{Path(model).name}", *words[2:], model]) == 0
        bare = yaml.safe_load((place / f"of-{Path(model).name}/conf/exp/first.yaml").read_text())
        assert "prompt" not in bare["data"]
