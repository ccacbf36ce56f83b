"""Verbs, exit codes, and what is printed to stdout and stderr."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest

from rlhf_cli.cli import main
from rlhf_cli.cli.verbs import TEN, VERBS
from rlhf_cli.errors import Preempted, RankFailed, UserError

pytestmark = pytest.mark.usefixtures("place")
Said = pytest.CaptureFixture[str]
Write = Callable[[str, str], Path]


@pytest.fixture
def verb(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[list[str]], int]], None]:
    """Return a function that replaces `rlhf list` by a verb of the test."""

    def call(run: Callable[[list[str]], int]) -> None:
        module = types.ModuleType("rlhf_cli.cli.verbs.list", "help")
        module.run = run  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "rlhf_cli.cli.verbs.list", module)

    return call


@pytest.mark.parametrize("words", [[], ["--help"], ["help"]])
def test_help_shows_ten_verbs_and_how_to_see_the_others(words: list[str], capsys: Said) -> None:
    assert main(words) == 0
    said = capsys.readouterr()
    assert said.err == ""
    assert [verb for verb, what in VERBS.items() if f"  {verb:<11} {what}\n" in said.out] == [
        verb for verb in VERBS if verb in TEN
    ]
    assert len(TEN) == 10
    assert f"rlhf --help-all has {len(VERBS) - 10} more verbs" in said.out
    assert max(map(len, said.out.splitlines())) <= 80
    assert len(said.out.splitlines()) <= 24, "a terminal's height"


def test_help_all_names_every_verb(capsys: Said) -> None:
    assert main(["--help-all"]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    for verb, what in VERBS.items():
        assert f"  {verb:<11} {what}\n" in said.out
    assert max(map(len, said.out.splitlines())) <= 80


@pytest.mark.parametrize(
    ("typed", "hint"), [("trian", "rlhf train --help"), ("statsu", "rlhf status"), ("xyzzy", "rlhf --help")]
)
def test_an_unknown_verb(typed: str, hint: str, capsys: Said) -> None:
    assert main([typed]) == 2
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", f"error: there is no verb {typed!r}\n  try:      {hint}\n")


def test_both_ways_to_the_help_of_a_verb(capsys: Said) -> None:
    assert main(["train", "--help"]) == 0
    asked = capsys.readouterr().out
    assert main(["help", "train"]) == 0
    assert capsys.readouterr().out == asked
    assert main(["help", "trian"]) == 2
    assert capsys.readouterr().err.endswith("try:      rlhf train --help\n")
    assert main(["help", "xyzzy"]) == 2
    assert capsys.readouterr().err.endswith("try:      rlhf --help\n")


def test_a_user_error_is_one_message_and_no_traceback(capsys: Said) -> None:
    assert main(["check", "+exp=quickstart", "sed=3"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("error: ")
    assert "  where:    sed (command line)\n" in said.err
    assert said.err.endswith("  try:      seed=3\n")
    assert "Traceback" not in said.err


@pytest.mark.parametrize(
    ("error", "code", "start"),
    [
        (UserError("wrong"), 2, "error: wrong\n"),
        (RankFailed("rank 1 failed"), 1, "error: rank 1 failed\n"),
        (Preempted("the run was interrupted"), 75, "stopped: the run was interrupted\n"),
        (KeyboardInterrupt(), 75, "stopped by Ctrl-C\n"),
        (ZeroDivisionError("a bug"), 1, "Traceback (most recent call last):\n"),
    ],
)
def test_exit_codes(
    error: BaseException, code: int, start: str, capsys: Said, verb: Callable[[Callable[[list[str]], int]], None]
) -> None:
    def run(argv: list[str]) -> int:
        raise error

    verb(run)
    assert main(["list"]) == code
    assert capsys.readouterr().err.startswith(start)


class TestResume:
    @pytest.mark.fault(10)
    def test_a_finished_run_is_left_alone(self, write: Write, place: Path, capsys: Said) -> None:
        write("runs/exp/a/config.yaml", "seed: 0\n")
        write("runs/exp/a/status.json", '{"state": "finished", "step": 9}')
        before = {path: path.stat().st_mtime_ns for path in place.rglob("*")}
        assert main(["resume", "runs/exp/a"]) == 0
        assert "nothing to do: the run has finished, at step 9" in capsys.readouterr().out
        assert {path: path.stat().st_mtime_ns for path in place.rglob("*")} == before
