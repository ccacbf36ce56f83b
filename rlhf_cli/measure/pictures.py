"""Draw evaluations and best-of-n curves as PNG."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rlhf_cli.measure.best_of_n import BestOfN
from rlhf_cli.measure.evaluation_files import Evaluation, Heading, read_evaluation
from rlhf_cli.measure.policy_results import PartEvaluation, PolicyEvaluation
from rlhf_cli.measure.scored_pairs import Calibration, Histograms, LengthBias, RewardModelEvaluation
from rlhf_cli.numerics.intervals import Estimate

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MISSING = "no picture: matplotlib is not installed (pip install 'rlhf-cli[plot]')"
BLUE, ORANGE, GREEN, GREY = "#3b6ea5", "#d98032", "#4a8f5a", "#999999"
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


def draw_best_of_n(best: BestOfN, title: str, file: Path) -> None:
    """Draw a curve with more than one point into a PNG file."""
    from matplotlib.ticker import FixedLocator, NullLocator, ScalarFormatter

    figure = new_figure(10, 4)
    picked, others = figure.subplots(1, 2)
    counts = [one.k for one in best.curve]
    scores = [one.score for one in best.curve]
    means = [one.mean or 0.0 for one in scores]
    low = [mean if one.low is None else one.low for mean, one in zip(means, scores, strict=True)]
    high = [mean if one.high is None else one.high for mean, one in zip(means, scores, strict=True)]
    picked.plot(counts, means, color=BLUE, marker="o", markersize=3)
    picked.fill_between(counts, low, high, color=BLUE, alpha=0.2, linewidth=0)
    picked.set_title(f"{best.by}: picked by it", fontsize=10)
    for name in best.curve[0].rewards:
        of_picked = [_drawn(one.rewards[name].mean) for one in best.curve]
        others.plot(counts, of_picked, marker="o", markersize=3, label=name)
    cut_off = [_drawn(one.truncated.mean) for one in best.curve]
    others.plot(counts, cut_off, color=GREY, linestyle="--", label="share cut off")
    others.set_title("the others at that pick", fontsize=10)
    others.legend(frameon=False, fontsize=8)
    ticks = sorted({2**power for power in range(counts[-1].bit_length())} | {counts[-1]})
    for axes in (picked, others):
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_locator(FixedLocator(ticks))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(ScalarFormatter())
        axes.set(xlabel="best of k")
    picked.set(ylabel="mean over prompts, 95 % interval")
    figure.suptitle(f"{title} ({best.prompts} prompts)", fontsize=10)
    figure.savefig(file, dpi=DPI)


Panels = dict[str, dict[str, Estimate]]
"""Title -> line label -> the figure of one evaluation."""
_COLUMNS = 3
_LEAST_SPAN = 0.1
_COLOURS = {"greedy": BLUE, "sampled": ORANGE}


def draw_history(folder: Path, file: Path) -> None:
    """Draw every `step-N.json` in `folder` into `file`: the total, each reward, pass@k and the truncated share.

    Raise ValueError for an evaluation without a step.
    """
    evaluations = map(read_evaluation, folder.glob("step-*.json"))
    points = [(one.heading, one.measured) for one in evaluations if isinstance(one.measured, PolicyEvaluation)]
    points.sort(key=lambda point: _step(point[0]))
    heading, newest = points[-1]
    by_step = {_step(heading): _panels(evaluation) for heading, evaluation in points}
    panels = _panels(newest)
    columns = min(_COLUMNS, len(panels))
    rows = math.ceil(len(panels) / columns)
    figure = new_figure(4.3 * columns, 0.5 + 2.8 * rows)
    grid = figure.subplots(rows, columns, squeeze=False).flatten()
    for axes, (title, lines) in zip(grid, panels.items(), strict=False):
        for label in lines:
            _line(axes, label, {step: of.get(title, {}).get(label) for step, of in by_step.items()})
        low, high = axes.get_ylim()
        if high - low < _LEAST_SPAN:  # otherwise the noise of a flat curve would fill the panel
            axes.set_ylim((low + high - _LEAST_SPAN) / 2, (low + high + _LEAST_SPAN) / 2)
        axes.set_title(title, fontsize=10, parse_math=False)
        axes.set_xlabel("step", fontsize=8)
        axes.tick_params(labelsize=8)
        if len(lines) > 1:
            axes.legend(frameon=False, fontsize=8)
    for axes in grid[len(panels) :]:
        axes.set_axis_off()
    figure.suptitle(
        f"{heading.model} on {heading.data} ({newest.rows} prompts, 95 % intervals)", fontsize=10, parse_math=False
    )
    figure.savefig(file, dpi=DPI)


def _step(heading: Heading) -> int:
    if heading.step is None:
        raise ValueError(f"{heading.name} is no evaluation of a training: it has no step")
    return heading.step


def _panels(evaluation: PolicyEvaluation) -> Panels:
    parts = evaluation.parts
    panels = {"total": {name: part.total for name, part in parts.items()}}
    for reward in next(iter(parts.values())).rewards:
        panels[f"{reward} (raw)"] = {name: part.rewards[reward].raw for name, part in parts.items()}
    for reward, attempts in evaluation.attempts.items():
        most = max(attempts.pass_at)
        of_k = {f"{kind}@{most}": by_k[most] for kind, by_k in attempts.by_name().items()}
        panels[f"{reward}: {most} attempts"] = of_k
    return panels | {"truncated": {name: part.truncated for name, part in parts.items()}}


def _line(axes: Axes, label: str, by_step: Mapping[int, Estimate | None]) -> None:
    """Draw a line with its band over the evaluations that have the figure."""
    known = [(step, one) for step, one in by_step.items() if one is not None and one.mean is not None]
    colour = _COLOURS.get(label, GREEN if label.startswith("pass") else BLUE)
    steps, means = [step for step, _ in known], [_drawn(one.mean) for _, one in known]
    axes.plot(steps, means, "o-", color=colour, markersize=3, linewidth=1.4, label=label)
    banded = [(step, one.low, one.high) for step, one in known if one.low is not None and one.high is not None]
    if banded:
        where, low, high = (list(side) for side in zip(*banded, strict=True))
        axes.fill_between(where, low, high, color=colour, alpha=0.15, linewidth=0)
