"""The picture of one evaluation: what is drawn where."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rlhf_cli.measure.pictures import draw
from tests.support import measured


def drawn(draws: Callable[[Path], None], file: Path, monkeypatch: pytest.MonkeyPatch) -> Figure:
    figures: list[Figure] = []
    save = Figure.savefig
    monkeypatch.setattr(
        Figure, "savefig", lambda self, *args, **named: (figures.append(self), save(self, *args, **named))
    )
    draws(file)
    assert file.read_bytes().startswith(b"\x89PNG")
    return figures[0]


def whiskers(axes: Axes) -> list[list[list[float]]]:
    """The corners of what error bars drew."""
    return [np.round(one, 6).tolist() for drawn in axes.collections for one in drawn.get_segments()]


def labels(axes: Axes) -> list[str]:
    return [text.get_text() for text in axes.get_legend().get_texts()]


def test_a_reward_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    evaluation = measured.headed(measured.reward_model())
    figure = drawn(lambda file: draw(evaluation, file), tmp_path / "a.png", monkeypatch)
    assert figure.get_size_inches().tolist() == [13, 4]
    calibration, histogram, length = figure.axes
    assert calibration.get_title() == "calibration error 0.111"
    assert calibration.lines[1].get_xydata().tolist() == [[0.875, 0.75]]  # the empty bin is not there
    assert whiskers(calibration) == [[[0.875, 0.625], [0.875, 0.875]]]
    assert calibration.lines[0].get_xydata().tolist() == [[0.5, 0.5], [1, 1]]
    assert labels(calibration) == ["calibrated"]
    assert [calibration.get_xlim(), calibration.get_ylim(), length.get_ylim()] == [
        *((0.48, 1.02), (-0.02, 1.02), (-0.02, 1.02))
    ]
    assert [bar.get_height() for bar in histogram.patches] == [4, 0, 1, 3]  # rejected, then chosen
    # Two bins from -1 to 3 are 2 wide.
    assert [(bar.get_x(), bar.get_width()) for bar in histogram.patches] == [(-1, 2), (1, 2)] * 2
    assert labels(histogram) == ["mean 1.500", "rejected", "chosen"]
    assert histogram.lines[0].get_xydata().tolist() == [[1.5, 0], [1.5, 1]]
    assert length.lines[0].get_xydata().tolist() == [[0, 0.5], [1, 0.5]]
    assert length.lines[1].get_xydata().tolist() == [[0, 1]]
    assert whiskers(length) == [[[0, 0.25], [0, 1]]]
    assert [axes.get_xlabel() for axes in figure.axes] == [
        *("confidence: sigmoid(|difference|)", "reward", "tokens, chosen minus rejected")
    ]
    assert [axes.get_ylabel() for axes in figure.axes] == ["accuracy", "completions", "accuracy"]
    assert [text.get_text() for text in length.get_xticklabels()] == ["-3 to 7"]
    assert length.get_title() == "length bias, correlation 0.56"
    assert figure.get_suptitle() == "exp/run on data.jsonl (4 rows)"


def test_a_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = {
        "greedy": measured.part(0.75, correct=0.5, never=None),
        "sampled": measured.part(0.5, correct=0.25, never=None),
    }
    evaluation = measured.headed(measured.policy(parts=parts))
    figure = drawn(lambda file: draw(evaluation, file), tmp_path / "a.png", monkeypatch)
    assert figure.get_size_inches() == pytest.approx([7, 1.2 + 6 * 0.45])  # two bars for each of three figures
    (axes,) = figure.axes
    assert [text.get_text() for text in axes.get_yticklabels()] == ["correct (raw)", "never (raw)", "total"]
    assert [bar.get_width() for bar in axes.patches] == [0.5, 0.75, 0.25, 0.5]  # no bar where nothing was scored
    # Of each figure's 0.8 the upper half is greedy's; the axis points down.
    middles = [bar.get_y() + bar.get_height() / 2 for bar in axes.patches]
    assert middles == pytest.approx([-0.2, 1.8, 0.2, 2.2])
    assert [bar.get_height() for bar in axes.patches] == pytest.approx([0.4] * 4)
    assert whiskers(axes)[1] == [[0.5, 1.8], [1.0, 1.8]]
    assert labels(axes) == ["greedy", "sampled"]
    low, high = axes.get_ylim()
    assert low > high
