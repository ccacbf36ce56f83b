"""The picture of one evaluation: what is drawn where."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rlhf_cli.measure.best_of_n import SampledAnswer, SampledPrompt, best_of_n
from rlhf_cli.measure.pictures import can_draw, draw, draw_best_of_n
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


def test_the_best_of_n(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of six answers that score 0 to 5: the best of k is (6 k - 1) / (k + 1) on average, the mean of the highest of k
    numbers without putting back; the other reward is its square, and one prompt of two has all answers cut off.
    """
    prompts = [
        SampledPrompt("q", [SampledAnswer("a", {"mine": n, "square": n * n}, n, is_truncated=cut) for n in range(6)])
        for cut in (False, True)
    ]
    figure = drawn(
        lambda file: draw_best_of_n(best_of_n(prompts, by="mine"), "exp/run", file), tmp_path / "a.png", monkeypatch
    )
    assert figure.get_size_inches().tolist() == [10, 4]
    assert figure.get_suptitle() == "exp/run (2 prompts)"
    picked, others = figure.axes
    counts = list(range(1, 7))
    (curve,) = picked.lines
    assert curve.get_xdata().tolist() == counts
    assert curve.get_ydata() == pytest.approx([(6 * k - 1) / (k + 1) for k in counts])
    by_name = {str(line.get_label()): line.get_ydata() for line in others.lines}
    assert list(by_name) == ["total", "square", "share cut off"]
    assert by_name["total"] == pytest.approx(curve.get_ydata())
    assert by_name["square"][[0, 5]] == pytest.approx([55 / 6, 25])
    assert by_name["share cut off"] == pytest.approx([0.5] * 6)
    (band,) = picked.collections  # both prompts have the same scores: the interval is the mean alone
    assert np.unique(np.round(band.get_paths()[0].vertices, 6), axis=0)[:, 1] == pytest.approx(curve.get_ydata())
    for axes in figure.axes:
        assert axes.get_xscale() == "log"
        assert axes.get_xticks().tolist() == [1, 2, 4, 6]  # powers of two, and the last
        assert [text.get_text() for text in axes.get_xticklabels()] == ["1", "2", "4", "6"]
        assert axes.get_xlabel() == "best of k"


def test_matplotlib_is_here() -> None:
    assert can_draw()
