"""The bar while a run trains: drawn on a terminal, lines where there is none."""

from __future__ import annotations

import io
import sys

import pytest

from rlhf_cli.display.progress_bars import TrainingBar


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
