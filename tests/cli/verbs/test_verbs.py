"""Verbs, their help, exit codes, and what a signal does before the training."""

from __future__ import annotations

import os
import signal
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlhf_cli.cli import main
from rlhf_cli.cli.verbs import TEN, VERBS, resume, train
from rlhf_cli.errors import Preempted, RankFailed, UserError

pytestmark = pytest.mark.usefixtures("place")
Said, Patch = pytest.CaptureFixture[str], pytest.MonkeyPatch


@pytest.mark.parametrize("words", [[], ["--help"], ["help"], ["--help-all"]])
def test_help_shows_ten_verbs_and_how_to_see_the_others(words: list[str], capsys: Said) -> None:
    assert main(words) == 0
    out, err = capsys.readouterr()
    assert err == ""
    is_all = words == ["--help-all"]
    shown = [verb for verb, what in VERBS.items() if f"  {verb:<11} {what}\n" in out]
    assert shown == [verb for verb in VERBS if is_all or verb in TEN]
    assert is_all or (len(shown), f"rlhf --help-all has {len(VERBS) - 10} more verbs" in out) == (10, True)
    assert max(map(len, out.splitlines())) <= 80
    assert is_all or len(out.splitlines()) <= 24, "a terminal's height"


def test_both_ways_to_the_help_of_a_verb(capsys: Said) -> None:
    assert main(["train", "--help"]) == 0
    asked = capsys.readouterr().out
    assert main(["help", "train"]) == 0
    assert capsys.readouterr().out == asked


@pytest.mark.parametrize(
    ("typed", "hint"),
    [
        *((["trian"], "rlhf train --help"), (["statsu"], "rlhf status"), (["xyzzy"], "rlhf --help")),
        *((["help", "trian"], "rlhf train --help"), (["help", "xyzzy"], "rlhf --help")),
    ],
)
def test_an_unknown_verb(typed: list[str], hint: str, capsys: Said) -> None:
    assert main(typed) == 2
    assert capsys.readouterr() == ("", f"error: there is no verb {typed[-1]!r}\n  try:      {hint}\n")


def test_a_user_error_is_one_message_and_no_traceback(capsys: Said) -> None:
    assert main(["check", "+exp=quickstart", "sed=3"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.startswith("error: "), "Traceback" in err) == ("", True, False)
    assert "  where:    sed (command line)\n" in err
    assert err.endswith("  try:      seed=3\n")


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
def test_exit_codes(error: BaseException, code: int, start: str, capsys: Said, monkeypatch: Patch) -> None:
    def run(argv: list[str]) -> int:
        raise error

    module = types.ModuleType("rlhf_cli.cli.verbs.list", "help")
    module.run = run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "rlhf_cli.cli.verbs.list", module)
    assert main(["list"]) == code
    assert capsys.readouterr().err.startswith(start)


@pytest.mark.fault(10)
def test_a_finished_run_is_not_resumed(write, place: Path, capsys: Said) -> None:
    write("runs/exp/a/config.yaml", "seed: 0\n")
    write("runs/exp/a/status.json", '{"state": "finished", "step": 9}')
    before = {path: path.stat().st_mtime_ns for path in place.rglob("*")}
    assert main(["resume", "runs/exp/a"]) == 0
    assert "nothing to do: the run has finished, at step 9" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in place.rglob("*")} == before


# A signal before the training: exit code 75, so that a scheduler may retry.


@pytest.fixture
def ignored() -> Iterator[None]:
    """Ignore both signals, so that the tests survive one that is not handled, and look whether they still are."""
    numbers = (signal.SIGTERM, signal.SIGUSR1)
    before = [signal.signal(number, signal.SIG_IGN) for number in numbers]
    yield
    assert [signal.signal(number, old) for number, old in zip(numbers, before, strict=True)] == [signal.SIG_IGN] * 2


@pytest.mark.fault(19)
@pytest.mark.parametrize(("module", "called"), [(train, "prepare"), (resume, "one_named")])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_while_a_run_is_prepared(
    module, called: str, number: signal.Signals, ignored: None, monkeypatch: Patch, capsys: Said
) -> None:
    monkeypatch.setattr(module, called, lambda *_, **__: os.kill(os.getpid(), number))
    assert main([module.__name__.rpartition(".")[2], "word"]) == 75
    assert capsys.readouterr().err == f"stopped by {number.name}: nothing was being trained\n"


def test_a_signal_while_the_verb_is_imported(ignored: None, monkeypatch: Patch, capsys: Said) -> None:
    """The import takes a third of a second, and a SIGTERM during it used to kill the command."""

    def imported(name: str) -> object:
        os.kill(os.getpid(), signal.SIGTERM)
        raise AssertionError("the signal was ignored")

    monkeypatch.setattr("rlhf_cli.cli.importlib.import_module", imported)
    assert main(["resume", "a/run"]) == 75
    assert capsys.readouterr().err == "stopped by SIGTERM: nothing was being trained\n"
