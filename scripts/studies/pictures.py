"""The pictures of the studies, as SVG: curves over the steps, and differences with their intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib import pyplot
from seeds import Interval

# Text stays text, and the same numbers give the same file.
pyplot.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "rlhf"}


@dataclass(frozen=True)
class Curve:
    """Points of one run, labelled with its condition."""

    label: str
    x: Sequence[float]
    y: Sequence[float]


def draw_curves(file: Path, panels: dict[str, list[Curve]], *, x_title: str, y_title: str | None = None) -> None:
    """Draw title -> its curves. Curves of one label have one colour. `y_title`: all panels share its axis."""
    size = (4.0 * len(panels), 3.4)
    figure, places = pyplot.subplots(1, len(panels), figsize=size, layout="constrained", sharey=y_title is not None)
    labels = list(dict.fromkeys(curve.label for panel in panels.values() for curve in panel))
    for place, (title, panel) in zip(places, panels.items(), strict=True):
        for curve in panel:
            marker = "o" if len(curve.x) < 10 else None
            style = {"color": f"C{labels.index(curve.label)}", "label": curve.label, "linewidth": 1.4, "marker": marker}
            place.plot(curve.x, curve.y, **style)
        place.set(title=title, xlabel=x_title)
    if y_title is not None:
        places[0].set(ylabel=y_title, ylim=(0, None))
    handles, shown = places[0].get_legend_handles_labels()
    figure.legend(handles, shown, loc="outside lower center", ncols=len(labels) if len(labels) < 6 else 4)
    _save(figure, file)


def draw_forest(
    file: Path, labels: Sequence[str], panels: dict[str, list[Interval]], *, zero: str, reach: float | None = None
) -> None:
    """Draw title -> one difference a label, with its interval; green or red where the interval leaves out zero.

    `zero` is what 0 stands for. `reach`: where the axes end, and a mean beyond is written there; None: show all.
    """
    size = (2.4 + 2.5 * len(panels), 1.4 + 0.28 * len(labels))
    figure, places = pyplot.subplots(1, len(panels), figsize=size, layout="constrained", sharey=True)
    for place, (title, panel) in zip(places, panels.items(), strict=True):
        place.axvline(0.0, color="0.6", linewidth=1)
        for row, one in enumerate(panel):
            colour = "#c0392b" if one.is_clear and one.mean < 0 else "#1e8449" if one.is_clear else "#555555"
            if reach is not None and abs(one.mean) > reach:
                edge, side = (-reach, "left") if one.mean < 0 else (reach, "right")
                place.text(edge, row, f" {one.mean:+.2f} ± {one.half:.2f} ", color=colour, ha=side, va="center")
            else:
                place.errorbar(one.mean, row, xerr=one.half, fmt="o", color=colour, capsize=3)
        if reach is not None:
            place.set_xlim(-reach, reach)
        place.set_title(title, fontsize="medium")
    places[0].set(yticks=range(len(labels)), yticklabels=labels, ylim=(len(labels) - 0.5, -0.5))
    says = f"difference to {zero}: mean over seeds, corrected 95 % interval\nin colour if 0 lies outside"
    figure.supxlabel(says, fontsize="medium")
    _save(figure, file)


def _save(figure: Any, file: Path) -> None:
    figure.savefig(file, metadata={"Date": None})
    pyplot.close(figure)
