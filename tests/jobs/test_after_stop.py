"""Ctrl-C in a sweep: one job is stopped, and what becomes of the sweep is asked, never taken for granted."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest
from rich.console import Console

from rlhf_cli.cli import main
from rlhf_cli.errors import Preempted
from rlhf_cli.jobs import after_stop
from rlhf_cli.jobs.after_stop import choice_after
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.run_status import read_status
from tests.support.small_runs import SMALL

STOPS_ONCE = """
import os, signal
def stop(completions, trainer_state, *, job, **kwargs):
    if job == 1 and trainer_state.global_step == 1 and not os.path.exists("stopped"):
        open("stopped", "w").close()
        signal.raise_signal(getattr(signal, os.environ.get("STOP_BY", "SIGINT")))
    return [float(len(completion)) for completion in completions]
"""


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch):
    """`typed(text)`: what is at the keyboard of somebody who sits at a terminal."""

    def answer(text: str) -> None:
        keyboard = io.StringIO(text)
        monkeypatch.setattr(keyboard, "isatty", lambda: True)
        monkeypatch.setattr(sys, "stdin", keyboard)

    return answer


def swept(workplace: Path) -> tuple[int, list[str]]:
    (workplace / "mine.py").write_text(STOPS_ONCE)
    words = ["rewards.mine.fn=./mine.py:stop", "rewards.mine.args.job=1,2", "run.name=swept"]
    code = main(["train", "-m", *SMALL, *words])
    folder = workplace / "runs" / "quickstart" / "swept"
    return code, [read_status(RunFolder(path.parent)).state for path in sorted(folder.glob("*/config.yaml"))]


@pytest.mark.parametrize(
    ("answer", "code", "states"),
    [
        ("stop\n", 75, ["preempted"]),
        ("skip\n", 75, ["preempted", "finished"]),
        ("continue\n", 0, ["finished", "finished"]),
    ],
)
@pytest.mark.fault(20)
def test_what_is_answered_is_done(workplace: Path, typed, answer: str, code: int, states: list[str]) -> None:
    typed(answer)
    assert swept(workplace) == (code, states)


def test_where_nobody_can_be_asked_the_sweep_stops(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("continue\n"))
    assert swept(workplace) == (75, ["preempted"])


def test_a_scheduler_s_signal_stops_the_sweep(workplace: Path, typed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOP_BY", "SIGTERM")
    typed("continue\n")
    assert swept(workplace) == (75, ["preempted"])


def choice() -> str:
    stopped = Preempted("saved step 1")
    stopped.reason = "Ctrl-C"
    return choice_after(Console(file=io.StringIO()), "0", stopped)


@pytest.mark.parametrize(
    ("answer", "made_of_it"),
    [("\n", "stop"), ("", "stop"), ("stop\n", "stop"), ("skip\n", "skip"), ("continue\n", "continue")],
)
def test_enter_stops_and_so_does_a_terminal_that_is_gone(typed, answer: str, made_of_it: str) -> None:
    """What becomes of the sweep then is tested above."""
    typed(answer)
    assert choice() == made_of_it


def test_another_key_while_it_is_asked_stops_it(typed, monkeypatch: pytest.MonkeyPatch) -> None:
    def pressed(*_: object, **__: object) -> str:
        raise KeyboardInterrupt

    typed("")
    monkeypatch.setattr(after_stop.Prompt, "ask", pressed)
    assert choice() == "stop"
