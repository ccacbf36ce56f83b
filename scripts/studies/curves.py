"""Curves side by side in panels, one colour a condition, as an SVG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

_WIDTH, _HEIGHT, _GAP, _LEFT, _TOP = 330, 230, 70, 60, 44
_COLOURS = ("#1f618d", "#c0392b", "#1e8449", "#8e44ad", "#b9770e", "#555555")


@dataclass(frozen=True)
class Curve:
    """Points of one run under the name of its condition."""

    label: str
    x: Sequence[float]
    y: Sequence[float]


def curves(panels: dict[str, list[Curve]], *, x_title: str) -> str:
    """Title -> its curves. Curves of one label have one colour, and one line in the legend."""
    labels = list(dict.fromkeys(curve.label for panel in panels.values() for curve in panel))
    colour = {label: _COLOURS[index % len(_COLOURS)] for index, label in enumerate(labels)}
    parts: list[str] = []
    for number, (title, panel) in enumerate(panels.items()):
        parts += _panel(title, panel, colour, _LEFT + number * (_WIDTH + _GAP), x_title)
    bottom = _TOP + _HEIGHT + 54
    for index, label in enumerate(labels):
        x = _LEFT + index * 190
        parts.append(
            f'<line x1="{x}" x2="{x + 22}" y1="{bottom}" y2="{bottom}" stroke="{colour[label]}" stroke-width="3"/>'
        )
        parts.append(f'<text x="{x + 28}" y="{bottom + 4}">{escape(label)}</text>')
    width = max(_LEFT + len(panels) * (_WIDTH + _GAP), _LEFT + len(labels) * 190)
    style = 'font-family="DejaVu Sans, Helvetica, sans-serif" font-size="13"'
    body = "\n".join(['<rect width="100%" height="100%" fill="white"/>', *parts])
    return f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{bottom + 20}" {style}>\n{body}\n</svg>\n'


def _panel(title: str, panel: list[Curve], colour: dict[str, str], left: int, x_title: str) -> list[str]:
    xs = [x for curve in panel for x in curve.x]
    ys = [y for curve in panel for y in curve.y]
    high_x, low_y, high_y = max(xs), min(ys), max(ys)
    margin = 0.05 * (high_y - low_y) or 0.5
    low_y, high_y = low_y - margin, high_y + margin

    def place(x: float, y: float) -> tuple[float, float]:
        return left + _WIDTH * x / high_x, _TOP + _HEIGHT * (high_y - y) / (high_y - low_y)

    middle = f'x="{left + _WIDTH / 2}" text-anchor="middle"'
    parts = [
        f'<text {middle} y="24" font-weight="bold">{escape(title)}</text>',
        f'<rect x="{left}" y="{_TOP}" width="{_WIDTH}" height="{_HEIGHT}" fill="none" stroke="#999"/>',
        f'<text {middle} y="{_TOP + _HEIGHT + 34}" fill="#666">{escape(x_title)}</text>',
    ]
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        x, y = share * high_x, low_y + share * (high_y - low_y)
        at_x, at_y = place(x, y)
        parts.append(f'<text x="{left - 6}" y="{at_y + 4:.1f}" text-anchor="end" fill="#666">{y:.2f}</text>')
        parts.append(f'<text x="{at_x:.1f}" y="{_TOP + _HEIGHT + 17}" text-anchor="middle" fill="#666">{x:.1f}</text>')
    for curve in panel:
        points = " ".join("{:.1f},{:.1f}".format(*place(x, y)) for x, y in zip(curve.x, curve.y, strict=True))
        stroke = f'fill="none" stroke="{colour[curve.label]}" stroke-width="1.6" stroke-opacity="0.8"'
        parts.append(f'<polyline points="{points}" {stroke}/>')
    return parts
