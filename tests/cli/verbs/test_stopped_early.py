"""A signal before the training ends the command with exit code 75, so that a scheduler may retry."""

from __future__ import annotations

import os
import signal

import pytest

from rlhf_cli.cli import main
from rlhf_cli.cli.verbs import resume, train


@pytest.mark.fault(19)
@pytest.mark.parametrize(("module", "called"), [(train, "prepare"), (resume, "one_named")])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_while_a_run_is_prepared(module, called: str, number: signal.Signals, monkeypatch, capsys) -> None:
    monkeypatch.setattr(module, called, lambda *_: os.kill(os.getpid(), number))
    before = signal.signal(number, signal.SIG_IGN)  # so that the test survives an unhandled signal
    try:
        assert main([module.__name__.rpartition(".")[2], "word"]) == 75
        assert signal.getsignal(number) is signal.SIG_IGN
    finally:
        signal.signal(number, before)
    assert capsys.readouterr().err == f"stopped by {number.name}: nothing was being trained\n"


def test_a_signal_while_the_verb_is_imported(monkeypatch, capsys) -> None:
    """The import takes a third of a second, and a SIGTERM during it used to kill the command."""

    def imported(name: str) -> object:
        os.kill(os.getpid(), signal.SIGTERM)
        raise AssertionError("the signal was ignored")

    monkeypatch.setattr("rlhf_cli.cli.importlib.import_module", imported)
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        assert main(["resume", "a/run"]) == 75
    finally:
        signal.signal(signal.SIGTERM, before)
    assert capsys.readouterr().err == "stopped by SIGTERM: nothing was being trained\n"
