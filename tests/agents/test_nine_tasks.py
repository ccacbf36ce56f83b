"""The nine tasks of AGENTS.md, typed as they stand there by a program that reads nothing but JSON and exit codes."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.documents.quoted_commands import ROOT
from tests.documents.typed_pages import type_script
from tests.support.json_shapes import is_described

pytestmark = pytest.mark.processes
TASKS = 9
_TASK = re.compile(r"^## (\d)\. (.*?)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
_BLOCK = re.compile(r"```sh\n(.*?)```", re.DOTALL)
_SHELL = """
rlhf() { count=$((count + 1)); local code=0
  "$PYTHON" -m rlhf_cli "$@" > "$answers/$count.json" 2> "$answers/$count.txt" || code=$?
  echo "$code $*" > "$answers/$count.code"; }
count=0
"""


@dataclass(frozen=True)
class Answer:
    """What a command printed, and how it ended."""

    command: str
    code: int
    said: dict | list
    words: str


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[Answer]]:
    """Every task's commands in the order they are written, in one empty folder."""
    place = tmp_path_factory.mktemp("a folder of an agent")
    text = (ROOT / "AGENTS.md").read_text(encoding="utf-8")
    return {int(number): _done(place, int(number), body) for number, _, body in _TASK.findall(text)}


def _done(place: Path, number: int, body: str) -> list[Answer]:
    folder = place.parent / f"{place.name} task {number}"
    folder.mkdir()
    done = type_script(_SHELL + "".join(_BLOCK.findall(body)), place, answers=str(folder))
    assert done.returncode == 0, done.stderr
    found = []
    for count in range(1, len(list(folder.glob("*.code"))) + 1):
        code, _, command = (folder / f"{count}.code").read_text().strip().partition(" ")
        printed, words = (folder / f"{count}.json").read_text(), (folder / f"{count}.txt").read_text()
        assert printed, f"{command}: nothing on stdout, exit code {code}\n{words}"
        found.append(Answer(command, int(code), json.loads(printed), words))
    return found


def test_there_are_nine(answers: dict[int, list[Answer]]) -> None:
    assert list(answers) == list(range(1, TASKS + 1))
    assert all(answers.values())


def test_all_end_as_they_are_said_to(answers: dict[int, list[Answer]]) -> None:
    codes = {answer.command: answer.code for task in answers.values() for answer in task}
    assert {command for command, code in codes.items() if code} == {"verify runs/quickstart/first --json"}, codes
    assert set(codes.values()) == {0, 1}


def test_each_has_the_shape_that_the_documents_say(answers: dict[int, list[Answer]]) -> None:
    for answer in (one for task in answers.values() for one in task):
        is_overview = answer.command.split() == ["list", "--json"]  # its keys are the groups
        assert is_overview or is_described(answer.command.split()[0], answer.said), answer.command


def test_the_winner_is_named_where_there_is_one(answers: dict[int, list[Answer]]) -> None:
    """Twenty steps are enough to see that digits alone are said where that is paid, too few for right sums."""
    swept, compared = (answer.said for answer in answers[5])
    assert [run["state"] for run in swept["runs"]] == ["finished"] * 8
    winners = {verdict["measure"]: verdict["winner"] for verdict in compared["verdicts"]}
    assert winners == {"format": "2", "correct": None}
