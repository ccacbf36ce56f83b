"""Run the nine tasks of AGENTS.md as a program would, reading only JSON and exit codes."""

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
_TASK = re.compile(r"^# (\d)\. .*\n((?s:.*?))(?=^# \d\. |^```)", re.MULTILINE)
_SHELL = """
rlhf() { count=$((count + 1)); local code=0
  "$PYTHON" -m rlhf_cli "$@" > "$answers/$count.json" 2> "$answers/$count.txt" || code=$?
  echo "$code $*" > "$answers/$count.code"; }
count=0
"""


@dataclass(frozen=True)
class Answer:
    """A command, its exit code, its JSON and its stderr."""

    command: str
    code: int
    printed: dict | list
    stderr: str


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[Answer]]:
    """Run every task's commands in order, in one empty folder."""
    place = tmp_path_factory.mktemp("a folder of an agent")
    text = (ROOT / "AGENTS.md").read_text(encoding="utf-8")
    return {int(number): _run_task(place, int(number), body) for number, body in _TASK.findall(text)}


def _run_task(place: Path, number: int, body: str) -> list[Answer]:
    folder = place.parent / f"{place.name} task {number}"
    folder.mkdir()
    done = type_script(_SHELL + body, place, answers=str(folder))
    assert done.returncode == 0, done.stderr
    answers = []
    for count in range(1, len(list(folder.glob("*.code"))) + 1):
        code, _, command = (folder / f"{count}.code").read_text().strip().partition(" ")
        printed, stderr = (folder / f"{count}.json").read_text(), (folder / f"{count}.txt").read_text()
        assert printed, f"{command}: nothing on stdout, exit code {code}\n{stderr}"
        answers.append(Answer(command, int(code), json.loads(printed), stderr))
    return answers


def test_all_nine_but_verify_exit_with_0(answers: dict[int, list[Answer]]) -> None:
    assert list(answers) == list(range(1, TASKS + 1))
    assert all(answers.values())
    codes = {answer.command: answer.code for task in answers.values() for answer in task}
    assert {command: code for command, code in codes.items() if code} == {"verify runs/quickstart/first --json": 1}


def test_each_output_has_the_documented_shape(answers: dict[int, list[Answer]]) -> None:
    for answer in (answer for task in answers.values() for answer in task):
        is_overview = answer.command.split() == ["list", "--json"]  # its keys are the groups
        assert is_overview or is_described(answer.command.split()[0], answer.printed), answer.command


def test_a_significant_difference_has_a_winner(answers: dict[int, list[Answer]]) -> None:
    """Twenty steps are enough to learn the format, but too few to learn sums."""
    swept, compared = (answer.printed for answer in answers[5])
    assert [run["state"] for run in swept["runs"]] == ["finished"] * 8
    winners = {verdict["measure"]: verdict["winner"] for verdict in compared["verdicts"]}
    assert winners == {"format": "2", "correct": None}
