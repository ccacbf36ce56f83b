"""Plot all evaluations of a training in one picture: each measure by step, with its 95 % band."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from rlhf_cli.measure.evaluation_files import Heading, read_evaluation
from rlhf_cli.measure.policy_results import PartEvaluation, PolicyEvaluation
from rlhf_cli.numerics.intervals import Estimate
from rlhf_cli.report.evaluation_picture import BLUE, DPI, GREEN, ORANGE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Measure = Callable[[PolicyEvaluation], Estimate | None]
Panels = dict[str, dict[str, Measure]]
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


def _of_part(part: str, measure: Callable[[PartEvaluation], Estimate | None]) -> Measure:
    return lambda evaluation: measure(evaluation.parts[part]) if part in evaluation.parts else None


def _raw(reward: str) -> Callable[[PartEvaluation], Estimate | None]:
    return lambda part: part.rewards[reward].raw if reward in part.rewards else None


def _of_attempts(reward: str, kind: str, count: int) -> Measure:
    def measure(evaluation: PolicyEvaluation) -> Estimate | None:
        attempts = evaluation.attempts.get(reward)
        return attempts.by_name()[kind].get(count) if attempts is not None else None

    return measure


def _line(axes: Axes, points: list[Point], label: str, measure: Measure) -> None:
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
