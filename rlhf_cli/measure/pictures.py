"""Draw evaluations as PNG."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rlhf_cli.measure.evaluation_files import Evaluation
from rlhf_cli.measure.policy_results import PartEvaluation
from rlhf_cli.measure.scored_pairs import Calibration, Histograms, LengthBias, RewardModelEvaluation
from rlhf_cli.numerics.intervals import Estimate

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MISSING = "no picture: matplotlib is not installed (pip install 'rlhf-cli[plot]')"
BLUE, ORANGE, GREY = "#3b6ea5", "#d98032", "#999999"
DPI = 120


def can_draw() -> bool:
    """Return whether matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure of this size in inches. No display is needed."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def draw(evaluation: Evaluation, file: Path) -> None:
    """Draw an evaluation into a PNG file."""
    heading, measured = evaluation.heading, evaluation.measured
    if isinstance(measured, RewardModelEvaluation):
        figure = new_figure(13, 4)
        calibration, histogram, length = figure.subplots(1, 3)
        _calibration(calibration, measured.calibration)
        _histogram(histogram, measured.histogram, measured.rewards.mean)
        _length(length, measured.length)
    else:
        num_bars = len(measured.parts) * (1 + len(next(iter(measured.parts.values())).rewards))
        figure = new_figure(7, 1.2 + 0.45 * num_bars)
        _components(figure.subplots(), measured.parts)
    figure.suptitle(f"{heading.model} on {heading.data} ({measured.rows} rows)", fontsize=10)
    figure.savefig(file, dpi=DPI)


def _calibration(axes: Axes, calibration: Calibration) -> None:
    bins = [one for one in calibration.bins if one.accuracy.count]
    axes.plot([0.5, 1], [0.5, 1], color=GREY, linestyle="--", linewidth=1, label="calibrated")
    _errorbar(axes, [one.confidence for one in bins], [one.accuracy for one in bins], BLUE)
    axes.set(xlabel="confidence: sigmoid(|difference|)", ylabel="accuracy", xlim=(0.48, 1.02), ylim=(-0.02, 1.02))
    axes.set_title(f"calibration error {calibration.ece:.3f}", fontsize=10)
    axes.legend(frameon=False, fontsize=8, loc="lower right")


def _histogram(axes: Axes, histograms: Histograms, mean: Estimate) -> None:
    for name, colour, one in (("rejected", ORANGE, histograms.rejected), ("chosen", BLUE, histograms.chosen)):
        width = (one.end - one.start) / len(one.counts) or 0.1
        places = [one.start + (index + 0.5) * width for index in range(len(one.counts))]
        axes.bar(places, one.counts, width=width, color=colour, alpha=0.55, label=name)
    if mean.mean is not None:
        axes.axvline(mean.mean, color="black", linewidth=1, label=f"mean {mean.mean:.3f}")
    axes.set(xlabel="reward", ylabel="completions")
    axes.set_title("rewards", fontsize=10)
    axes.legend(frameon=False, fontsize=8, loc="upper center")


def _length(axes: Axes, length: LengthBias) -> None:
    bins = length.bins
    axes.axhline(0.5, color=GREY, linestyle="--", linewidth=1)
    _errorbar(axes, list(range(len(bins))), bins, BLUE)
    axes.set_xticks(range(len(bins)), [f"{one.start} to {one.end}" for one in bins], rotation=20, fontsize=8)
    axes.set(xlabel="tokens, chosen minus rejected", ylabel="accuracy", ylim=(-0.02, 1.02))
    correlation = length.pearson
    axes.set_title("length bias" + (f", correlation {correlation:.2f}" if correlation is not None else ""), fontsize=10)


def _components(axes: Axes, parts: Mapping[str, PartEvaluation]) -> None:
    """Draw the mean raw scores: one group of bars per reward and for the total, one bar per decoding mode."""
    names = [*next(iter(parts.values())).rewards, "total"]
    height = 0.8 / len(parts)
    for number, ((name, part), colour) in enumerate(zip(parts.items(), (BLUE, ORANGE), strict=False)):
        estimates = [part.rewards[one].raw if one in part.rewards else part.total for one in names]
        places = [index + (number - (len(parts) - 1) / 2) * height for index in range(len(names))]
        known = [(place, one) for place, one in zip(places, estimates, strict=True) if one.mean is not None]
        where, scored = [place for place, _ in known], [one for _, one in known]
        means = [_drawn(one.mean) for one in scored]
        axes.barh(where, means, height=height, color=colour, xerr=_whiskers(scored), capsize=2, label=name)
    axes.set_yticks(range(len(names)), [f"{name} (raw)" if name != "total" else name for name in names])
    axes.invert_yaxis()
    axes.set(xlabel="mean, 95 % interval over prompts")
    axes.legend(frameon=False, fontsize=8)


def _errorbar(axes: Axes, places: Sequence[float | None], estimates: Sequence[Estimate], colour: str) -> None:
    means = [_drawn(one.mean) for one in estimates]
    where = [_drawn(place) for place in places]
    axes.errorbar(where, means, yerr=_whiskers(estimates), fmt="o-", color=colour, markersize=4, capsize=2)


def _drawn(value: float | None) -> float:
    """Return NaN for an unknown value; matplotlib does not draw it."""
    return math.nan if value is None else value


def _whiskers(estimates: Sequence[Estimate]) -> list[list[float]]:
    """Return the lengths below and above the mean, 0 if an interval has no end."""
    ends = [(one.low, one.mean, one.high) for one in estimates]
    below = [0.0 if low is None or mean is None else max(0.0, mean - low) for low, mean, _ in ends]
    above = [0.0 if high is None or mean is None else max(0.0, high - mean) for _, mean, high in ends]
    return [below, above]
