"""A signal before anything trains: the command leaves as it would by Ctrl-C, and a scheduler sees that it may retry."""

from __future__ import annotations

import os
import signal

import pytest

from rlhf_cli.cli import main
from rlhf_cli.cli.verbs import resume, train


@pytest.mark.fault(19)
@pytest.mark.parametrize(("module", "called"), [(train, "prepare"), (resume, "is_sweep")])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_while_a_run_is_prepared(module, called: str, number: signal.Signals, monkeypatch, capsys) -> None:
    monkeypatch.setattr(module, called, lambda *_: os.kill(os.getpid(), number))
    before = signal.signal(number, signal.SIG_IGN)  # where nobody listens, this test is not to end
    try:
        assert main([module.__name__.rpartition(".")[2], "word"]) == 75
        assert signal.getsignal(number) is signal.SIG_IGN
    finally:
        signal.signal(number, before)
    assert capsys.readouterr().err == f"stopped by {number.name}: nothing was being trained\n"


def test_a_signal_while_the_verb_is_imported(monkeypatch, capsys) -> None:
    """It takes a third of a second of CPU: a SIGTERM 6 s after the start, on a busy machine, killed `rlhf resume`."""

    def imported(name: str) -> object:
        os.kill(os.getpid(), signal.SIGTERM)
        raise AssertionError("nobody heard")

    monkeypatch.setattr("rlhf_cli.cli.importlib.import_module", imported)
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        assert main(["resume", "a/run"]) == 75
    finally:
        signal.signal(signal.SIGTERM, before)
    assert capsys.readouterr().err == "stopped by SIGTERM: nothing was being trained\n"
