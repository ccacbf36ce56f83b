"""A forest plot: a dot and its interval a condition, side by side for several measures, as an SVG."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from seeds import Interval

_WIDTH, _GAP, _ROW, _TOP = 260, 40, 26, 50


def forest(labels: Sequence[str], panels: dict[str, list[Interval]], *, zero: str, reach: float | None = None) -> str:
    """Title -> one difference a label; green or red where the interval leaves out zero.

    `zero` is what 0 stands for. `reach`: where the axes end, and a mean beyond is written there; None: show all.
    """
    reach = reach or 1.1 * max(abs(one.mean) + one.half for panel in panels.values() for one in panel)
    left = 30 + 7.5 * max(len(label) for label in labels)
    bottom = _TOP + _ROW * len(labels)
    parts = [f'<text x="12" y="{_TOP + _ROW * index + 9}">{escape(label)}</text>' for index, label in enumerate(labels)]
    for number, (title, panel) in enumerate(panels.items()):
        middle = left + _WIDTH / 2 + number * (_WIDTH + _GAP)
        scale = _WIDTH / 2 / reach
        parts.append(f'<text x="{middle}" y="26" text-anchor="middle" font-weight="bold">{escape(title)}</text>')
        parts.append(f'<line x1="{middle}" x2="{middle}" y1="{_TOP - 12}" y2="{bottom}" stroke="#999"/>')
        for value in (-reach / 1.1, 0.0, reach / 1.1):
            text = f"{value:+.2f}" if value else zero
            x = middle + value * scale
            parts.append(f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle" fill="#666">{escape(text)}</text>')
        for index, one in enumerate(panel):
            y = _TOP + _ROW * index + 5
            ends = (max(-reach, min(reach, one.mean + sign * one.half)) for sign in (-1, 1))
            low, high = (middle + end * scale for end in ends)
            colour = "#c0392b" if one.is_clear and one.mean < 0 else "#1e8449" if one.is_clear else "#555"
            if abs(one.mean) > reach:
                x, anchor = (low, "start") if one.mean < 0 else (high, "end")
                text = f"◀ {one.mean:+.2f}" if one.mean < 0 else f"{one.mean:+.2f} ▶"
                parts.append(f'<text x="{x:.1f}" y="{y + 4}" text-anchor="{anchor}" fill="{colour}">{text}</text>')
                continue
            parts.append(f'<line x1="{low:.1f}" x2="{high:.1f}" y1="{y}" y2="{y}" stroke="{colour}" stroke-width="2"/>')
            parts.append(f'<circle cx="{middle + one.mean * scale:.1f}" cy="{y}" r="5" fill="{colour}"/>')
    width = left + len(panels) * (_WIDTH + _GAP) + 20
    style = 'font-family="DejaVu Sans, Helvetica, sans-serif" font-size="13"'
    background = '<rect width="100%" height="100%" fill="white"/>'
    body = "\n".join([background, *parts])
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{bottom + 34}" {style}>\n{body}\n</svg>\n'
    )
