"""Draw the pictures of the studies as SVG: curves over the steps, and differences with their intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib import pyplot
from seeds import Interval

# Keep text as text, and make the same file from the same numbers.
pyplot.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "rlhf"}


@dataclass(frozen=True)
class Curve:
    """Points of one run with the label of its condition."""

    label: str
    x: Sequence[float]
    y: Sequence[float]


def draw_curves(file: Path, panels: dict[str, list[Curve]], *, x_title: str, y_title: str | None = None) -> None:
    """Draw title -> its curves, one colour per label. y_title: all panels share its axis."""
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
    """Draw title -> one difference per label with its interval, green or red if the interval excludes zero.

    zero: the meaning of 0. reach: the end of the axes, a mean beyond it is written there; None: show all.
    """
    size = (2.4 + 2.5 * len(panels), 1.4 + 0.28 * len(labels))
    figure, places = pyplot.subplots(1, len(panels), figsize=size, layout="constrained", sharey=True)
    for place, (title, panel) in zip(places, panels.items(), strict=True):
        place.axvline(0.0, color="0.6", linewidth=1)
        for row, difference in enumerate(panel):
            colour = (
                "#c0392b"
                if difference.is_clear and difference.mean < 0
                else "#1e8449"
                if difference.is_clear
                else "#555555"
            )
            if reach is not None and abs(difference.mean) > reach:
                edge, side = (-reach, "left") if difference.mean < 0 else (reach, "right")
                place.text(
                    edge, row, f" {difference.mean:+.2f} ± {difference.half:.2f} ", color=colour, ha=side, va="center"
                )
            else:
                place.errorbar(difference.mean, row, xerr=difference.half, fmt="o", color=colour, capsize=3)
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
