"""Plot an evaluation as PNG. This needs matplotlib from the extra `plot`."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rlhf_cli.measure.evaluation_files import Evaluation
from rlhf_cli.measure.policy_results import PartEvaluation, PolicyEvaluation
from rlhf_cli.measure.reward_model_results import Calibration, Histograms, LengthBias, RewardModelEvaluation
from rlhf_cli.numerics.intervals import Estimate

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MISSING = "no picture: matplotlib is not installed (pip install 'rlhf-cli[plot]')"
BLUE, ORANGE, GREEN, GREY = "#3b6ea5", "#d98032", "#4a8f5a", "#999999"
DPI = 120


def can_draw() -> bool:
    """Return whether matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def draw(evaluation: Evaluation, file: Path) -> None:
    """Draw an evaluation into a PNG file. No display is needed."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    heading, measured = evaluation.heading, evaluation.measured
    size = (13, 4) if isinstance(measured, RewardModelEvaluation) else (7, 1.2 + 0.45 * _num_bars(measured))
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    if isinstance(measured, RewardModelEvaluation):
        calibration, histogram, length = figure.subplots(1, 3)
        _calibration(calibration, measured.calibration)
        _histogram(histogram, measured.histogram, measured.rewards.mean)
        _length(length, measured.length)
    else:
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
        known = [(place, one.mean, one) for place, one in zip(places, estimates, strict=True) if one.mean is not None]
        where, means = [place for place, _, _ in known], [mean for _, mean, _ in known]
        values = [one for _, _, one in known]
        axes.barh(where, means, height=height, color=colour, xerr=_whiskers(values), capsize=2, label=name)
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
    below = [_distance(one.low, one.mean) for one in estimates]
    above = [_distance(one.mean, one.high) for one in estimates]
    return [below, above]


def _distance(low: float | None, high: float | None) -> float:
    return 0.0 if low is None or high is None else max(0.0, high - low)


def _num_bars(evaluation: PolicyEvaluation) -> int:
    parts = evaluation.parts
    return len(parts) * (1 + len(next(iter(parts.values())).rewards))
