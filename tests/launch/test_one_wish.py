"""Who is cancelled by Slurm is told twice at once, by Slurm and by its parent: that is one wish, two keys are two."""

from __future__ import annotations

import os
import signal
import time

import pytest

from rlhf_cli.errors import Interrupted
from rlhf_cli.launch import stopping as module
from rlhf_cli.launch.stopping import Stopping, stopped_by_signals


@pytest.fixture
def stopping() -> Stopping:
    wish = Stopping(grace_s=60, must_save_by=None, on_late=lambda reason: None)
    wish.steps_begin()
    return wish


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGUSR1])
def test_an_echo_interrupts_nothing(stopping: Stopping, second: signal.Signals) -> None:
    with stopped_by_signals(stopping):
        os.kill(os.getpid(), signal.SIGTERM)
        try:
            os.kill(os.getpid(), second)
        except Interrupted:
            pytest.fail("the echo was taken for a second wish")
    assert stopping.reason == "SIGTERM"


def test_a_second_signal_later_interrupts(stopping: Stopping, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_ONE_WISH_S", 0.05)
    with stopped_by_signals(stopping):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.2)
        with pytest.raises(Interrupted):
            os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.fault(20)
def test_a_second_key_interrupts_however_soon(stopping: Stopping) -> None:
    with stopped_by_signals(stopping):
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(Interrupted):
            os.kill(os.getpid(), signal.SIGINT)
