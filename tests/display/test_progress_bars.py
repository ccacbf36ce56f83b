"""A wait has a sign of life in a pipe, too."""

from __future__ import annotations

import time

import pytest

from rlhf_cli.display import progress_bars
from rlhf_cli.display.progress_bars import spinner


def test_a_pipe_is_told_what_takes_long(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_bars, "_QUIET_S", 0.01)
    with spinner("importing torch") as show:
        show("loading ./big-model")
        deadline = time.monotonic() + 60
        while not (said := capsys.readouterr().out) and time.monotonic() < deadline:
            time.sleep(0.01)
    assert "loading ./big-model ..." in said.splitlines()


@pytest.mark.parametrize(("quiet_s", "shown"), [(30.0, True), (0.01, False)])
def test_what_is_quick_or_hidden_prints_nothing(
    quiet_s: float, shown: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress_bars, "_QUIET_S", quiet_s)
    with spinner("importing torch", shown=shown):
        time.sleep(0.1)
    assert capsys.readouterr().out == ""
