"""A forest plot: a dot and its interval a condition, side by side for several measures, as an SVG."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from seeds import Interval

_LEFT, _WIDTH, _GAP, _ROW, _TOP = 200, 260, 40, 26, 50


def forest(labels: Sequence[str], panels: dict[str, list[Interval]], *, zero: str) -> str:
    """Title -> one difference a label; green or red where the interval leaves out zero. `zero` is what 0 stands for."""
    reach = 1.1 * max(abs(one.mean) + one.half for panel in panels.values() for one in panel)
    bottom = _TOP + _ROW * len(labels)
    parts = [f'<text x="12" y="{_TOP + _ROW * index + 9}">{escape(label)}</text>' for index, label in enumerate(labels)]
    for number, (title, panel) in enumerate(panels.items()):
        middle = _LEFT + _WIDTH / 2 + number * (_WIDTH + _GAP)
        scale = _WIDTH / 2 / reach
        parts.append(f'<text x="{middle}" y="26" text-anchor="middle" font-weight="bold">{escape(title)}</text>')
        parts.append(f'<line x1="{middle}" x2="{middle}" y1="{_TOP - 12}" y2="{bottom}" stroke="#999"/>')
        for value in (-reach / 1.1, 0.0, reach / 1.1):
            text = f"{value:+.2f}" if value else zero
            x = middle + value * scale
            parts.append(f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle" fill="#666">{escape(text)}</text>')
        for index, one in enumerate(panel):
            y = _TOP + _ROW * index + 5
            low, high = (middle + (one.mean + sign * one.half) * scale for sign in (-1, 1))
            colour = "#c0392b" if one.is_clear and one.mean < 0 else "#1e8449" if one.is_clear else "#555"
            parts.append(f'<line x1="{low:.1f}" x2="{high:.1f}" y1="{y}" y2="{y}" stroke="{colour}" stroke-width="2"/>')
            parts.append(f'<circle cx="{middle + one.mean * scale:.1f}" cy="{y}" r="5" fill="{colour}"/>')
    width = _LEFT + len(panels) * (_WIDTH + _GAP) + 20
    style = 'font-family="DejaVu Sans, Helvetica, sans-serif" font-size="13"'
    background = '<rect width="100%" height="100%" fill="white"/>'
    body = "\n".join([background, *parts])
    return f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{bottom + 34}" {style}>\n{body}\n</svg>\n'
