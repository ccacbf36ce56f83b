"""The bar while a run trains: drawn on a terminal, lines where there is none."""

from __future__ import annotations

import io
import sys
import time
from pathlib import Path

import pytest

from rlhf_cli.display import progress_bars
from rlhf_cli.display.progress_bars import Spinner, TrainingBar, waited_for
from rlhf_cli.runs.running_reward import Running, RunningReward


class Terminal(io.StringIO):
    """A file that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Make standard output a terminal of 80 columns, and return what it shows."""
    screen = Terminal()
    for name, value in {"COLUMNS": "80", "TERM": "xterm"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "stdout", screen)
    return screen


def test_without_a_terminal_a_line_every_tenth(capsys: pytest.CaptureFixture[str]) -> None:
    bar = TrainingBar()
    bar.start(0, 40)
    for step in range(1, 13):
        bar.move_to(step)
        bar.say_latest("reward 0.5")
        bar.say_line(step, f"reward {step}.000")
    bar.print("one sample")
    bar.stop()
    assert capsys.readouterr().out.splitlines() == [
        "step 4/40  reward 4.000",
        "step 8/40  reward 8.000",
        "step 12/40  reward 12.000",
        "one sample",
    ]


def test_on_a_terminal_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = terminal(monkeypatch)
    bar = TrainingBar()
    bar.start(2, 40)
    bar.move_to(7)
    bar.say_latest("reward 0.625")
    bar.say_line(4, "no line")
    bar.stop()
    drawn = screen.getvalue()
    assert " 7/40" in drawn
    assert "reward 0.625" in drawn
    assert "no line" not in drawn


def ran(seconds: float, name: str = "judge", rank: int = 0) -> Running:
    return Running(name, rank, began_at=100.0 - seconds)


@pytest.mark.parametrize(
    ("running", "said"),
    [
        ([], ""),
        ([ran(1.9)], ""),
        ([ran(2.0)], "reward judge, 2 s"),
        ([ran(3, "style"), ran(14.4)], "reward judge, 14 s"),
        ([ran(14, rank=3)], "reward judge on rank 3, 14 s"),
    ],
)
def test_the_reward_that_has_run_for_longest_is_named(running: list[Running], said: str) -> None:
    assert waited_for(running, 100.0) == said


def test_the_bar_names_the_reward_that_is_waited_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(progress_bars, "_WORTH_NAMING_S", 0.0)
    screen = terminal(monkeypatch)
    bar = TrainingBar(tmp_path)
    running = RunningReward(tmp_path, 0)
    bar.start(2, 40)
    with running("judge"):
        time.sleep(1.2)
    bar.stop()
    assert "reward judge, 0 s" in screen.getvalue()


def test_the_spinner_says_what_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = terminal(monkeypatch)
    with Spinner(shown=True) as spinner:
        spinner.update("warm start", 3, 20)
    assert "warm start 3/20" in screen.getvalue()
