"""Draw evaluations and best-of-n curves as PNG."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rlhf_cli.measure.best_of_n import BestOfN
from rlhf_cli.measure.evaluation_files import Evaluation, Heading, read_evaluation
from rlhf_cli.measure.policy_results import PartEvaluation, PolicyEvaluation
from rlhf_cli.measure.scored_pairs import Calibration, Histograms, LengthBias, RewardModelEvaluation
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


def draw_best_of_n(best: BestOfN, title: str, file: Path) -> None:
    """Draw a curve with more than one point into a PNG file. No display is needed."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import FixedLocator, NullLocator, ScalarFormatter

    figure = Figure(figsize=(10, 4), layout="constrained")
    FigureCanvasAgg(figure)
    picked, others = figure.subplots(1, 2)
    counts = [one.k for one in best.curve]
    low, high = _ends([one.score for one in best.curve])
    picked.plot(counts, [one.score.mean for one in best.curve], color=BLUE, marker="o", markersize=3)
    picked.fill_between(counts, low, high, color=BLUE, alpha=0.2, linewidth=0)
    picked.set_title(f"{best.by}: picked by it", fontsize=10)
    for name in best.curve[0].rewards:
        means = [float("nan") if (mean := one.rewards[name].mean) is None else mean for one in best.curve]
        others.plot(counts, means, marker="o", markersize=3, label=name)
    cut = [float("nan") if (mean := one.truncated.mean) is None else mean for one in best.curve]
    others.plot(counts, cut, color=GREY, linestyle="--", label="share cut off")
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
    temporary = file.with_name(f".{file.name}")
    figure.savefig(temporary, dpi=DPI, format="png")
    temporary.replace(file)


def _ends(estimates: Sequence[Estimate]) -> tuple[list[float], list[float]]:
    """Return the lower and upper ends of the band. Use the mean if an interval has no ends."""
    means = [one.mean or 0.0 for one in estimates]
    low = [mean if one.low is None else one.low for mean, one in zip(means, estimates, strict=True)]
    high = [mean if one.high is None else one.high for mean, one in zip(means, estimates, strict=True)]
    return low, high


MeasureHistory = Callable[[PolicyEvaluation], Estimate | None]
Panels = dict[str, dict[str, MeasureHistory]]
"""Title -> line label -> a function that returns the measure of an evaluation, or None if the evaluation lacks it."""
Point = tuple[Heading, PolicyEvaluation]
_COLUMNS = 3
_LEAST_SPAN = 0.1
_COLOURS = {"greedy": BLUE, "sampled": ORANGE}


def draw_history(folder: Path, file: Path) -> None:
    """Draw every `step-N.json` in `folder` into `file`: the total, each reward, pass@k and the truncated share."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    points = _points(folder)
    heading, newest = points[-1]
    panels = _panels(newest)
    columns = min(_COLUMNS, len(panels))
    rows = math.ceil(len(panels) / columns)
    figure = Figure(figsize=(4.3 * columns, 0.5 + 2.8 * rows), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(rows, columns, squeeze=False).flatten()
    for axes, (title, lines) in zip(grid, panels.items(), strict=False):
        for label, measure in lines.items():
            _line(axes, points, label, measure)
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


def _points(folder: Path) -> list[Point]:
    """Return the policy evaluations, sorted by step."""
    evaluations = map(read_evaluation, folder.glob("step-*.json"))
    points = [(one.heading, one.measured) for one in evaluations if isinstance(one.measured, PolicyEvaluation)]
    return sorted(points, key=lambda point: _step(point[0]))


def _step(heading: Heading) -> int:
    if heading.step is None:
        raise ValueError(f"{heading.name} is no evaluation of a training: it has no step")
    return heading.step


def _panels(newest: PolicyEvaluation) -> Panels:
    parts = list(newest.parts)
    panels: Panels = {"total": {part: _of_part(part, lambda one: one.total) for part in parts}}
    for reward in newest.parts[parts[0]].rewards:
        panels[f"{reward} (raw)"] = {part: _of_part(part, _raw(reward)) for part in parts}
    for reward, attempts in newest.attempts.items():
        most = max(attempts.pass_at)
        panels[f"{reward}: {most} attempts"] = {
            f"{kind}@{most}": _of_attempts(reward, kind, most) for kind in attempts.by_name()
        }
    panels["truncated"] = {part: _of_part(part, lambda one: one.truncated) for part in parts}
    return panels


def _of_part(part: str, measure: Callable[[PartEvaluation], Estimate | None]) -> MeasureHistory:
    return lambda evaluation: measure(evaluation.parts[part]) if part in evaluation.parts else None


def _raw(reward: str) -> Callable[[PartEvaluation], Estimate | None]:
    return lambda part: part.rewards[reward].raw if reward in part.rewards else None


def _of_attempts(reward: str, kind: str, count: int) -> MeasureHistory:
    def measure(evaluation: PolicyEvaluation) -> Estimate | None:
        attempts = evaluation.attempts.get(reward)
        return attempts.by_name()[kind].get(count) if attempts is not None else None

    return measure


def _line(axes: Axes, points: list[Point], label: str, measure: MeasureHistory) -> None:
    """Draw a line with its band over the evaluations that have the measure."""
    estimates = [(_step(heading), one) for heading, evaluation in points if (one := measure(evaluation)) is not None]
    known = [(step, one.mean) for step, one in estimates if one.mean is not None]
    colour = _COLOURS.get(label, GREEN if label.startswith("pass") else BLUE)
    steps, means = [step for step, _ in known], [mean for _, mean in known]
    axes.plot(steps, means, "o-", color=colour, markersize=3, linewidth=1.4, label=label)
    banded = [(step, one.low, one.high) for step, one in estimates if one.low is not None and one.high is not None]
    if banded:
        where, low, high = (list(side) for side in zip(*banded, strict=True))
        axes.fill_between(where, low, high, color=colour, alpha=0.15, linewidth=0)
