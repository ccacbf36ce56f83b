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


def experiment_of(folder: Path, name: str = "first") -> dict[str, Any]:
    return dict(yaml.safe_load((folder / f"conf/exp/{name}.yaml").read_text()))


def as_json(capsys: Said, *words: str) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["init", *words, "--json"]) == 0
    return dict(json.loads(capsys.readouterr().out))


def test_json_lists_the_written_files(place: Path, write: Write, capsys: Said) -> None:
    write("my pairs.jsonl", '{"question": "a", "better": "b", "worse": "c"}\n')
    said = as_json(capsys, "my project", "--trains", "dpo", "--data", "my pairs.jsonl")
    there = place / "my project"
    assert set(said.pop("files")) == {str(path.relative_to(there)) for path in there.rglob("*") if path.is_file()}
    assert said.pop("next")[0] == "cd 'my project'"
    assert said == {
        **{"folder": str(there), "trains": "dpo", "model": "tiny", "data": "../my pairs.jsonl"},
        "rename": {"prompt": "question", "chosen": "better", "rejected": "worse"},
    }


def test_nothing_is_overwritten_and_a_second_experiment_is_added(place: Path, capsys: Said) -> None:
    """The second experiment uses the rewards of the first, and the user's README stays."""
    (place / "README.md").write_text("mine")
    assert main(["init"]) == 0
    before = {file: file.read_text() for file in place.rglob("*") if file.is_file()}
    said = as_json(capsys, "--trains", "ppo")
    assert said["files"] == ["conf/exp/second.yaml"]
    assert said["next"] == ["rlhf check +exp=second", "rlhf train +exp=second"]
    assert (before[place / "README.md"], {file: file.read_text() for file in before}) == ("mine", before)
    assert experiment_of(place, "second")["rewards"]["brief"]["fn"] == "./rewards.py:brief"
    assert main(["check", "+exp=second", "--json"]) == 0


HELPER = "def helper(text): ...\n"
THEIRS = f"""
def polite(completions, answer, **columns):
    return [1.0 for _ in completions]
def graded(completions, grade, **columns): ...
def strict(completions, *, least, **columns): ...
{HELPER}"""


def test_the_rewards_of_the_user_are_used(place: Path, capsys: Said) -> None:
    """Only those that fit the data: `graded` reads a missing column, `strict` needs an argument."""
    (place / "rewards.py").write_text(THEIRS)
    assert main(["init"]) == 0
    assert (place / "rewards.py").read_text() == THEIRS
    assert not (place / "test_rewards.py").exists()
    assert experiment_of(place)["rewards"] == {"polite": {"fn": "./rewards.py:polite", "weight": 1.0}}
    assert "plain" not in (place / "AGENTS.md").read_text()
    assert main(["check", "+exp=first"]) == 0


def test_a_rewards_file_without_rewards_is_left_alone(place: Path, capsys: Said) -> None:
    (place / "rewards.py").write_text(HELPER)
    assert main(["init"]) == 0
    said = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines() if "_rewards.py" in line)
    assert ["pytest" in said[f"{test}first_rewards.py"] for test in ("test_", "")] == [True, False]
    assert (place / "rewards.py").read_text() == HELPER
    functions = {entry["fn"] for entry in experiment_of(place)["rewards"].values()}
    assert functions == {f"./first_rewards.py:{name}" for name in ("correct", "brief")}
    assert "from first_rewards import" in (place / "test_first_rewards.py").read_text()
    assert main(["check", "+exp=first"]) == 0


def test_paths_are_relative_if_they_were_typed_so(place: Path, write: Write) -> None:
    """The project is in another folder or here; an absolute path stays absolute."""
    file = str(write("data/sums.csv", "question,answer\n" + "1+1=,2\n" * 50))
    for folder, typed, written in (
        ("b/c", "./data/sums.csv", "../../data/sums.csv"),
        ("d", file, file),
        (".", "data/sums.csv", "./data/sums.csv"),
    ):
        assert main(["init", folder, "--data", typed]) == 0
        assert experiment_of(place / folder)["data"]["path"] == written


def test_rows_that_the_tiny_model_cannot_learn(place: Path, write: Write, capsys: Said) -> None:
    """The output offers a command with a real model, but not for sums."""
    write("words.csv", "question,answer\n" + "How many apples has Tom?,3\n" * 50)
    write("sums.csv", "question,answer\n" + "12 + 5 =,17\n" * 50)
    assert main(["init", "--data", "sums.csv"]) == 0
    assert "smollm2" not in capsys.readouterr().out
    assert main(["init", "--data", "words.csv"]) == 0
    offered = capsys.readouterr().out.splitlines()[-1].strip()
    assert offered == "rlhf init --data words.csv --model smollm2"
    assert main(shlex.split(offered)[1:]) == 0
    third = experiment_of(place, "third")
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
    assert experiment_of(place / "p")["data"]["prompt"] == [{"role": "user", "content": "{prompt}"}]
    for model in ("tiny", "./model"):  # these have a template but were trained on plain texts
        assert main(["init", f"of-{Path(model).name}", *words[2:], model]) == 0
        assert "prompt" not in experiment_of(place / f"of-{Path(model).name}")["data"]
