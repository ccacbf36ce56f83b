"""Files in another encoding, pipes, circles, YAML that becomes huge and long names are refused in a second, with place.

A "billion laughs" file of nine levels of nine aliases has 9 ** 9 values: 387 million, worked out by hand.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from rlhf_cli.cli import main
from rlhf_cli.text.regular_files import SAFE_LOADER, OversizedYaml
from tests.support.planning import Write

HEAD = "# @package _global_\n# mine\ndefaults:\n  - quickstart\n  - _self_\n"
DEEP = "${oc.select:" * 500 + "x" + "}" * 500


def _circle(file: Path) -> None:
    file.write_text("# @package _global_\ndefaults:\n  - /exp/other\n")
    file.with_name("other.yaml").write_text("# @package _global_\n# x\ndefaults:\n  - /exp/mine\n")


CASES: dict[str, tuple[Callable[[Path], object], str]] = {
    "Latin-1": (lambda file: file.write_text(HEAD + "# café\nseed: 3\n", encoding="latin-1"), "mine.yaml:6"),
    "UTF-16": (lambda file: file.write_text(HEAD, encoding="utf-16"), "mine.yaml:1"),
    "UTF-16 without a mark": (lambda file: file.write_text(HEAD, encoding="utf-16-le"), "mine.yaml:1"),
    "a NUL": (lambda file: file.write_text(HEAD + "seed: 3\0\n"), "mine.yaml:6"),
    "a circle of two": (_circle, "mine.yaml:3"),
    "itself": (lambda file: file.write_text("# @package _global_\ndefaults:\n  - /exp/mine\n"), "mine.yaml:3"),
    "deep references": (lambda file: file.write_text(f"{HEAD}seed: {DEEP}\n"), "mine.yaml:6"),
    "a section as a choice": (
        lambda file: file.write_text(HEAD.replace("- _self_", '- override /model: "${oc.select:rewards}"')),
        "mine.yaml:5",
    ),
    "a FIFO": (os.mkfifo, "mine.yaml"),
    "a device": (lambda file: file.symlink_to("/dev/zero"), "mine.yaml"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_bad_file_is_refused_with_its_line(case: str, by_hydra: None, place: Path, refused) -> None:
    write, where = CASES[case]
    (place / "conf" / "exp").mkdir(parents=True)
    write(place / "conf" / "exp" / "mine.yaml")
    assert f"conf/exp/{where}" in refused("check", "+exp=mine")


@pytest.mark.parametrize(("group", "text"), [("data", "- a\n"), ("model", "hello\n")])
def test_a_choice_that_is_not_a_mapping(group: str, text: str, by_hydra: None, write: Write, refused) -> None:
    write(f"conf/{group}/mine.yaml", text)
    assert f"conf/{group}/mine.yaml" in refused("check", "+exp=quickstart", f"{group}=mine")


def test_a_bad_file_that_is_not_used_hides_nothing(by_hydra: None, write: Write, capsys) -> None:
    write("conf/exp/mine.yaml", HEAD)
    write("conf/exp/other.yaml", "").write_text("# café\n", encoding="latin-1")
    assert main(["show", "+exp=mine", "seed"]) == main(["list", "exp"]) == 0
    assert "mine" in capsys.readouterr().out


BOMB = "x0: &x0 [lol, lol, lol, lol, lol, lol, lol, lol, lol]\n" + "".join(
    f"x{level}: &x{level} [{', '.join([f'*x{level - 1}'] * 9)}]\n" for level in range(1, 9)
)
TEXTS = {
    "more than 100000 values": BOMB,
    "inside its own node": "track: &track {tags: [*track]}\n",
    "more than 100 levels deep": "track: {tags: " + "[" * 3000 + "]" * 3000 + "}\n",
}


@pytest.fixture
def refused(place: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """`refused(words)`: what a command says that ends with exit code 2, in a few seconds and without a traceback."""

    def call(*words: str) -> str:
        began = time.process_time()
        code, printed = main(list(words)), capsys.readouterr().err
        assert (code, "Traceback" in printed) == (2, False), printed
        assert time.process_time() - began < 20
        assert len(printed) < 2000
        return printed

    return call


@pytest.mark.parametrize("says", TEXTS)
def test_a_file_of_the_users_or_a_run_folder_that_somebody_sent(says: str, write: Write, refused) -> None:
    write("conf/exp/mine.yaml", "# @package _global_\n" + TEXTS[says])
    write("runs/x/sent/config.yaml", TEXTS[says])
    for words, file in (
        (("check", "+exp=mine"), "conf/exp/mine.yaml:"),
        (("resume", "runs/x/sent"), "sent/config.yaml"),
    ):
        printed = refused(*words)
        assert (says in printed, file in printed) == (True, True)


OTHERS = {
    "launch.accelerate_config=a_bomb": BOMB,
    "launch.accelerate_config=a_pipe": None,
    "model.chat_template=deep.jinja": "{" * 5000,
    **{
        f"{key}=./deep.py:f{end}": f"x = {'-' * 100_000}1\n"
        for key, end in (("aggregate", ""), ("trainer.class", ""), ("trainer.callbacks", "]"), ("rewards.x.fn", ""))
    },
}


@pytest.mark.parametrize("word", OTHERS)
def test_another_file_that_a_key_names(word: str, place: Path, refused) -> None:
    """A hundred thousand signs are too many for Python's own parser: MemoryError."""
    key, _, named = word.replace("callbacks=", "callbacks=[").partition("=")
    file = place / named.strip("[]./").partition(":")[0]
    os.mkfifo(file) if (text := OTHERS[word]) is None else file.write_text(text)
    printed = refused("check", "+exp=quickstart", f"{key}={named}")
    assert (file.name in printed, key in printed) == (True, True)


@pytest.mark.parametrize("text", ["[" * 200_000, "- " * 200_000, "? " * 200_000, "{a: " * 200_000])
def test_nesting_that_would_end_the_process(text: str) -> None:
    """libyaml builds such a document by calling itself, until the stack is used up: no exception, a dead process."""
    with pytest.raises(OversizedYaml):
        yaml.compose(text, Loader=SAFE_LOADER)


def test_aliases_that_are_few_are_read() -> None:
    text = "a: &a [1, 2]\nb: *a\nc: {<<: {x: 1}, y: *a}\n"
    assert yaml.load(text, Loader=SAFE_LOADER) == yaml.safe_load(text)


@pytest.mark.parametrize("key", ["run.name", "run.root", "model.path", "rewards.{}.fn"])
def test_a_name_of_300_letters(key: str, refused) -> None:
    name = "a" * 300
    values = {"model.path": f"./{name}", "rewards.{}.fn": "rlhf_cli.rewards.toy:sums_correct"}
    words = [*["~model.build"] * (key == "model.path"), f"{key.format(name)}={values.get(key, name)}"]
    assert re.search("128|too long", refused("check", "+exp=quickstart", *words))


def test_a_folder_that_was_removed_under_the_shell(place: Path, refused) -> None:
    place.rmdir()
    assert "current folder" in refused("check", "+exp=quickstart")
