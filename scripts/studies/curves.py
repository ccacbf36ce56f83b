"""Curves side by side in panels, one colour a condition, as an SVG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib import pyplot


@dataclass(frozen=True)
class Curve:
    """Points of one run, labelled with its condition."""

    label: str
    x: Sequence[float]
    y: Sequence[float]


def draw_curves(file: Path, panels: dict[str, list[Curve]], *, x_title: str) -> None:
    """Draw title -> its curves. Curves of one label have one colour."""
    figure, places = pyplot.subplots(1, len(panels), figsize=(4.4 * len(panels), 3.6), layout="constrained")
    labels = list(dict.fromkeys(curve.label for panel in panels.values() for curve in panel))
    for place, (title, panel) in zip(places, panels.items(), strict=True):
        for curve in panel:
            place.plot(curve.x, curve.y, color=f"C{labels.index(curve.label)}", label=curve.label, linewidth=1.4)
        place.set(title=title, xlabel=x_title)
    handles, shown = places[0].get_legend_handles_labels()
    figure.legend(handles, shown, loc="outside lower center", ncols=4)
    figure.savefig(file)
