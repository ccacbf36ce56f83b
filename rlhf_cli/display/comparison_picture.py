"""Plot a comparison as one PNG: each component by setting, and the verdict's differences."""

from __future__ import annotations

import importlib.util
import math
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

from rlhf_cli.analysis.comparison.comparison import Comparison
from rlhf_cli.analysis.comparison.measures import RunMeasure
from rlhf_cli.analysis.comparison.verdicts import BETTER, WORSE, MeasureVerdict
from rlhf_cli.errors import UserError
from rlhf_cli.numerics.intervals import Estimate

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BLUE, _ORANGE, _GREY = "#3b6ea5", "#d98032", "#999999"
_COLUMNS = 3
_MOST_PANELS = 12
_LETTERS_A_COLUMN = 56
"""Number of caption letters that fit the width of one panel."""


def draw_comparison(comparison: Comparison, file: Path) -> None:
    """Draw a comparison into a PNG file.

    No display is needed. Raise UserError if matplotlib is not installed or no run has logged anything to draw.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise UserError("matplotlib is not installed (pip install 'rlhf-cli[plot]')", where="--png")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    measures = comparison.measures[:_MOST_PANELS]
    num_panels = len(measures) + len(comparison.verdicts)
    if not num_panels:
        raise UserError("no run logged a metric to draw")
    columns = min(_COLUMNS, num_panels)
    rows = math.ceil(num_panels / columns)
    height = 1.1 + 0.22 * max(
        len(comparison.estimates), *(len(verdict.differences) for verdict in comparison.verdicts), 4
    )
    lines = _caption(comparison, _LETTERS_A_COLUMN * columns)
    figure = Figure(figsize=(4.6 * columns, 0.3 + 0.18 * len(lines) + height * rows), layout="constrained")
    FigureCanvasAgg(figure)
    panels = iter(figure.subplots(rows, columns, squeeze=False).flatten())
    for measure in measures:
        _settings(next(panels), comparison, measure)
    for verdict in comparison.verdicts:
        _differences(next(panels), verdict)
    for left in panels:
        left.set_axis_off()
    figure.suptitle("\n".join(lines), fontsize=10, parse_math=False)
    figure.savefig(file, dpi=120)


def _caption(comparison: Comparison, letters: int) -> list[str]:
    """Return the number of runs, the differing keys, and why there is no verdict, wrapped to `letters` characters."""
    seeds = max((len(setting.by_seed) for setting in comparison.grouped.settings), default=0)
    counted = f"{len(comparison.runs)} runs, up to {seeds} seeds per setting"
    texts = [
        f"{counted}, 95 % intervals; {comparison.asked.window.in_words}",
        f"differs: {', '.join(comparison.grouped.keys) or 'nothing'}",
        comparison.no_verdict or "",
    ]
    return [line for text in texts for line in textwrap.wrap(text, letters)]


def _dot(axes: Axes, row: int, estimate: Estimate, colour: str) -> None:
    """Draw the mean of an estimate as a dot, with its interval as a line."""
    if estimate.mean is not None:
        axes.plot([estimate.mean], [row], "o", color=colour, markersize=5, zorder=3)
    if estimate.low is not None and estimate.high is not None:
        axes.plot([estimate.low, estimate.high], [row, row], color=colour, linewidth=1.6, zorder=2)


def _settings(axes: Axes, comparison: Comparison, measure: RunMeasure) -> None:
    """Draw a dot and an interval per setting, with its seeds as small grey dots below."""
    settings = comparison.grouped.settings
    for row, setting in enumerate(settings):
        estimate = comparison.estimates[setting.name][measure.label]
        seeds = [comparison.values[measure.label][run.name] for run in setting.runs]
        axes.plot(seeds, [row + 0.18] * len(seeds), ".", color=_GREY, markersize=4, zorder=1)
        _dot(axes, row, estimate, _BLUE)
    title = measure.label if measure.sign >= 0 else f"{measure.label} (less is better)"
    _rows(axes, title, [setting.name for setting in settings])


def _differences(axes: Axes, verdict: MeasureVerdict) -> None:
    """Draw one interval per difference, in orange if the verdict is better or worse."""
    axes.axvline(0, color=_GREY, linewidth=0.8)
    for row, pair in enumerate(verdict.differences):
        _dot(axes, row, pair.difference, _ORANGE if pair.outcome in (BETTER, WORSE) else _BLUE)
    names = [f"{pair.value} - {pair.other}" for pair in verdict.differences]
    _rows(axes, f"{verdict.measure.label}: differences by {verdict.key}, paired by seed", names)


def _rows(axes: Axes, title: str, names: list[str]) -> None:
    axes.set_yticks(range(len(names)), names, fontsize=8, parse_math=False)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_title(title, fontsize=9, parse_math=False)
    axes.tick_params(axis="x", labelsize=8)
    axes.grid(axis="x", linewidth=0.3)
