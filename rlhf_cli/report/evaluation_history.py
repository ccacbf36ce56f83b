"""The picture of all evaluations of a training: each measure by step, with its 95 % band."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from rlhf_cli.report.evaluation_picture import BLUE, DPI, GREEN, ORANGE
from rlhf_cli.runs.run_folder import read_json

Content = dict[str, Any]
Panels = dict[str, dict[str, tuple[str, ...]]]
"""Title -> label of a line -> where its estimate is found in an evaluation's content."""
_COLUMNS = 3
_LEAST_SPAN = 0.1
_COLOURS = {"greedy": BLUE, "sampled": ORANGE}


def draw_history(folder: Path, file: Path) -> None:
    """Draw every `step-N.json` in `folder` into `file`: the total, each reward, pass@k, the truncated share."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    contents = sorted((read_json(one) for one in folder.glob("step-*.json")), key=lambda content: int(content["step"]))
    panels = _panels(contents[-1])
    columns = min(_COLUMNS, len(panels))
    rows = math.ceil(len(panels) / columns)
    figure = Figure(figsize=(4.3 * columns, 0.5 + 2.8 * rows), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(rows, columns, squeeze=False).flatten()
    for axes, (title, lines) in zip(grid, panels.items(), strict=False):
        for label, path in lines.items():
            _line(axes, contents, label, path)
        low, high = axes.get_ylim()
        if high - low < _LEAST_SPAN:  # else what does not move at all would look like a mountain range
            axes.set_ylim((low + high - _LEAST_SPAN) / 2, (low + high + _LEAST_SPAN) / 2)
        axes.set_title(title, fontsize=10, parse_math=False)
        axes.set_xlabel("step", fontsize=8)
        axes.tick_params(labelsize=8)
        if len(lines) > 1:
            axes.legend(frameon=False, fontsize=8)
    for axes in grid[len(panels) :]:
        axes.set_axis_off()
    last = contents[-1]
    figure.suptitle(
        f"{last['model']} on {last['data']} ({last['rows']} prompts, 95 % intervals)", fontsize=10, parse_math=False
    )
    figure.savefig(file, dpi=DPI)


def _panels(content: Content) -> Panels:
    parts = list(content["parts"])
    panels: Panels = {"total": {part: ("parts", part, "total") for part in parts}}
    for reward in content["parts"][parts[0]]["rewards"]:
        panels[f"{reward} (raw)"] = {part: ("parts", part, "rewards", reward, "raw") for part in parts}
    for reward, attempts in content["attempts"].items():
        most = max(attempts["pass"], key=int)
        panels[f"{reward}: {most} attempts"] = {
            f"pass@{most}": ("attempts", reward, "pass", most),
            f"maj@{most}": ("attempts", reward, "maj", most),
        }
    panels["truncated"] = {part: ("parts", part, "truncated") for part in parts}
    return panels


def _line(axes: Any, contents: list[Content], label: str, path: tuple[str, ...]) -> None:
    """A line with its band, over the evaluations that have the measure."""
    points = [(content["step"], one) for content in contents if (one := _at(content, path)) is not None]
    known = [(step, one) for step, one in points if one["mean"] is not None]
    colour = _COLOURS.get(label, GREEN if label.startswith("pass") else BLUE)
    steps = [step for step, _ in known]
    axes.plot(steps, [one["mean"] for _, one in known], "o-", color=colour, markersize=3, linewidth=1.4, label=label)
    banded = [(step, one["low"], one["high"]) for step, one in known if None not in (one["low"], one["high"])]
    if banded:
        axes.fill_between(*zip(*banded, strict=True), color=colour, alpha=0.15, linewidth=0)


def _at(content: Content, path: tuple[str, ...]) -> Any:
    found: Any = content
    for key in path:
        found = found.get(key) if isinstance(found, dict) else None
    return found
