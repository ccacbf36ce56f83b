"""The picture of one evaluation: what is drawn where."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from rlhf_cli.measure.pictures import can_draw, draw
from tests.support import measured


def drawn(evaluation: Any, file: Path, monkeypatch: pytest.MonkeyPatch) -> Figure:
    figures: list[Figure] = []
    save = Figure.savefig
    monkeypatch.setattr(
        Figure, "savefig", lambda self, *args, **named: (figures.append(self), save(self, *args, **named))
    )
    draw(evaluation, file)
    assert file.read_bytes().startswith(b"\x89PNG")
    return figures[0]


def test_a_reward_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figure = drawn(measured.headed(measured.reward_model()), tmp_path / "a.png", monkeypatch)
    calibration, histogram, length = figure.axes
    assert calibration.get_title() == "calibration error 0.111"
    assert calibration.lines[1].get_xydata().tolist() == [[0.875, 0.75]]  # the empty bin is not there
    assert [bar.get_height() for bar in histogram.patches] == [4, 0, 1, 3]  # rejected, then chosen
    assert [text.get_text() for text in length.get_xticklabels()] == ["-3 to 7"]
    assert length.get_title() == "length bias, correlation 0.56"
    assert figure.get_suptitle() == "exp/run on data.jsonl (4 rows)"


def test_a_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = {
        "greedy": measured.part(0.75, correct=0.5, never=None),
        "sampled": measured.part(0.5, correct=0.25, never=None),
    }
    figure = drawn(measured.headed(measured.policy(parts=parts)), tmp_path / "a.png", monkeypatch)
    (axes,) = figure.axes
    assert [text.get_text() for text in axes.get_yticklabels()] == ["correct (raw)", "never (raw)", "total"]
    assert [bar.get_width() for bar in axes.patches] == [0.5, 0.75, 0.25, 0.5]  # no bar where nothing was scored


def test_matplotlib_is_here() -> None:
    assert can_draw()
