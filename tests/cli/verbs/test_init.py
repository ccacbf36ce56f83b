"""`rlhf init` as it is typed, without a terminal: flags, refusals, JSON; nothing is asked of a program."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rlhf_cli.cli import main
from tests.house.test_light import HEAVY

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_PATIENCE_S = 30.0
KEYS = {"folder", "files", "trains", "model", "data", "rename", "next"}


@pytest.fixture(autouse=True)
def nobody_answers(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks without a terminal fails."""

    def asked(*args: object, **named: object) -> str:
        raise AssertionError("a question was asked")

    monkeypatch.setattr("builtins.input", asked)


def test_without_a_terminal_the_usual_is_written(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init"]) == 0
    said = capsys.readouterr().out
    assert (place / "conf" / "exp" / "first.yaml").is_file()
    assert "cd " not in said
    assert "rlhf train +exp=first" in said
    assert "override /trainer: grpo" in (place / "conf" / "exp" / "first.yaml").read_text()


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


def test_a_column_is_named_by_a_flag(write: Callable[[str, str], Path], capsys: pytest.CaptureFixture[str]) -> None:
    write("rows.csv", "Frage Text,Lösung\nWas ist 2+3?,5\n")
    assert main(["init", "p", "--data", "rows.csv"]) == 2
    assert "--column 'prompt=Frage Text'" in capsys.readouterr().err
    flags = ["--column", "prompt=Frage Text", "--column", "answer=Lösung"]
    assert main(["init", "p", "--data", "rows.csv", *flags, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rename"] == {"prompt": "Frage Text", "answer": "Lösung"}


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
        (["my", "project"], "rlhf init 'my project'"),
    ],
)
def test_refusals_write_nothing(words: list[str], said: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", *words]) == 2
    assert said in capsys.readouterr().err
    assert list(place.iterdir()) == []


def test_it_is_light_and_a_pipe_is_no_terminal(place: Path) -> None:
    program = (
        "import sys\nfrom rlhf_cli.cli import main\nmain(['init', '--json'])\nprint(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, input="ppo\n")
    assert set(done.stderr.split()) & set(HEAVY) == set()
    assert json.loads(done.stdout)["trains"] == "grpo"


class Typist:
    """A person at a terminal: reads what is drawn until a question ends, and types an answer."""

    def __init__(self, words: list[str], place: Path) -> None:
        self.pid, self.terminal = os.forkpty()
        if self.pid == 0:
            os.chdir(place)
            os.execv(sys.executable, [sys.executable, "-m", "rlhf_cli", *words])
        self.seen, self.read = "", 0

    def until(self, text: str) -> None:
        """Read until this is on the screen."""
        while (at := _COLOUR.sub("", self.seen).find(text, self.read)) < 0:
            if not self._reads():
                raise AssertionError(f"{text!r} is not in:\n{self.seen}")
        self.read = at + len(text)

    def types(self, keys: str) -> None:
        """Press keys."""
        os.write(self.terminal, keys.encode())

    def code(self) -> int:
        """Wait for the end; returns the exit code."""
        while self._reads():
            pass
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def leaves_by(self, keys: str) -> int:
        """Press keys until the program is gone, and return its exit code.

        A signal that comes between a prompt and the read behind it is noted by Python, and looked at when the read is
        interrupted by the next one: of 729 presses at the very prompt 32 were. A person presses Ctrl-C again.
        """
        for _ in range(10):
            with contextlib.suppress(OSError):
                self.types(keys)
            while select.select([self.terminal], [], [], 3)[0]:
                try:
                    self.seen += os.read(self.terminal, 4096).decode()
                except OSError:  # the terminal's other end is closed
                    return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        os.kill(self.pid, signal.SIGKILL)
        raise AssertionError(f"{keys!r} is not heard:\n{self.seen}")

    def _reads(self) -> bool:
        """Take what the program has written since; False where it is gone, or says nothing for a long time."""
        if not select.select([self.terminal], [], [], _PATIENCE_S)[0]:
            os.kill(self.pid, signal.SIGKILL)
            return False
        try:
            self.seen += os.read(self.terminal, 4096).decode()
        except OSError:  # the terminal's other end is closed
            return False
        return True


def test_three_questions_and_which_column(place: Path, write: Callable[[str, str], Path]) -> None:
    write("rows.csv", "Frage Text,Antwort\nWas ist 2+3?,5\n")
    person = Typist(["init", "a project"], place)
    person.until("trainer (grpo)")
    person.types("rlo\r")  # told what to type at a question, where no flag can be
    person.until("try:      rloo")
    person.until("trainer (grpo)")
    person.types("ppo\r")
    person.until("model (tiny)")
    person.types("./nowhere\r")  # told, and asked again
    person.until("no such model folder")
    person.until("model (tiny)")
    person.types("\r")
    person.until("data (sample)")
    person.types("rows.csv\r")
    person.until("column")
    person.types("Frage Text\r")
    assert person.code() == 0, person.seen
    text = (place / "a project" / "conf" / "exp" / "first.yaml").read_text()
    assert "override /trainer: ppo" in text
    assert 'prompt: "Frage Text"' in text


def test_ctrl_c_between_two_questions_writes_nothing(place: Path) -> None:
    person = Typist(["init", "mine"], place)
    person.until("trainer")
    person.types("dpo\r")
    person.until("model (tiny)")
    assert person.leaves_by("\x03") == 75
    assert "Traceback" not in person.seen
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


def test_a_file_in_the_way_leads_to_a_free_folder(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "my-project").write_text("")
    assert main(["init", "my-project"]) == 2
    assert main(typed_as_said(capsys)) == 0
    assert (place / "my-project-2").is_dir()


def test_columns_behind_one_flag_get_a_flag_each(
    write: Callable[[str, str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    write("q.csv", "question,solution\n1+1,2\n")
    words = ["init", "p", "--data", "q.csv", "--column", "prompt=question", "answer=solution"]
    assert main(words) == 2
    meant = typed_as_said(capsys)
    assert meant == [*words[:-1], "--column", "answer=solution"]
    assert main(meant) == 0
    assert main(["init", "my", "new project", "--trains", "sft"]) == 2
    assert main(typed_as_said(capsys)) == 0
    assert Path("my new project").is_dir()
