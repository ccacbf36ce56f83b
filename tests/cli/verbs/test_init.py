"""`rlhf init` as it is typed: flags, refusals, JSON."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from rlhf_cli.cli import main
from tests.support.model_copies import model_copy

KEYS = {"folder", "files", "trains", "model", "data", "rename", "next"}


def test_json_says_what_was_written(
    place: Path, write: Callable[[str, str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    write("my pairs.jsonl", '{"question": "a", "better": "b", "worse": "c"}\n')
    words = ["--trains", "dpo", "--data", "my pairs.jsonl", "--json"]
    assert main(["init", "my project", *words]) == 0
    said = json.loads(capsys.readouterr().out)
    assert set(said) == KEYS
    assert said["folder"] == str(place / "my project")
    assert (said["trains"], said["model"], said["data"]) == ("dpo", "tiny", str(place / "my pairs.jsonl"))
    assert said["rename"] == {"prompt": "question", "chosen": "better", "rejected": "worse"}
    assert said["next"][0] == "cd 'my project'"
    there = {
        str(path.relative_to(place / "my project")) for path in (place / "my project").rglob("*") if path.is_file()
    }
    assert there == set(said["files"])


def test_nothing_is_overwritten_and_all_that_is_there_is_named(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "README.md").write_text("mine")
    (place / "rewards.py").write_text("mine")
    assert main(["init", "--json"]) == 2
    (problem,) = json.loads(capsys.readouterr().out)["problems"]
    assert problem["got"] == "README.md, rewards.py"
    assert sorted(path.name for path in place.iterdir()) == ["README.md", "rewards.py"]
    assert (place / "README.md").read_text() == "mine"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--trains", "gpro"], "--trains grpo"),
        (["--model", "./nowhere"], "no such model folder"),
        (["--data", "nowhere.csv"], "no such file"),
        (["--column", "prompt"], "--column is ROLE=COLUMN"),
        (["--train", "dpo"], "--trains"),
    ],
)
def test_refusals_write_nothing(words: list[str], said: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", *words]) == 2
    assert said in capsys.readouterr().err
    assert list(place.iterdir()) == []


def typed_as_said(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The words of the command that the last message says to try."""
    said = re.search(r"try: +rlhf (.*)\n", capsys.readouterr().err)
    assert said is not None
    return shlex.split(said[1])


@pytest.mark.parametrize("folder", ["my-project", "a b/c", "."])
def test_a_taken_folder_leads_to_a_free_one(folder: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(3):
        assert main(["init", folder]) in (0, 2)
        capsys.readouterr()
        assert main(["init", folder]) == 2
        assert main(typed_as_said(capsys)) == 0


def test_columns_behind_one_flag_get_a_flag_each(
    write: Callable[[str, str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    write("q.csv", "question,solution\n1+1,2\n")
    words = ["init", "p", "--data", "q.csv", "--column", "prompt=question", "answer=solution"]
    assert main(words) == 2
    meant = typed_as_said(capsys)
    assert meant == [*words[:-1], "--column", "answer=solution"]
    assert main(meant) == 0


def test_several_words_are_one_name(capsys: pytest.CaptureFixture[str], place: Path) -> None:
    assert main(["init", "my", "new project", "--trains", "sft"]) == 2
    assert main(typed_as_said(capsys)) == 0
    assert (place / "my new project").is_dir()


def test_a_chat_models_prompts_are_messages(place: Path, write: Callable[[str, str], Path]) -> None:
    """What TRL would give it otherwise is bare text, which a chat model was not trained on."""
    model_copy(place / "model")
    model_copy(place / "chat", tokenizer_config={"chat_template": "{{ messages }}"}, without=("chat_template.jinja",))
    write("rows.csv", "question,answer\n" + "1+1?,2\n" * 50)
    words = ["init", "p", "--data", "rows.csv", "--column", "prompt=question", "--model"]
    assert main([*words, "./chat"]) == 0
    experiment = yaml.safe_load((place / "p/conf/exp/first.yaml").read_text())
    assert experiment["data"]["prompt"] == [{"role": "user", "content": "{prompt}"}]
    for model in ("tiny", "./model"):  # the embedded models have a template, and were trained on bare texts
        assert main(["init", f"of-{Path(model).name}", *words[2:], model]) == 0
        bare = yaml.safe_load((place / f"of-{Path(model).name}/conf/exp/first.yaml").read_text())
        assert "prompt" not in bare["data"]
