"""Gives settings their colours: told apart by most eyes, readable on light and on dark ground."""

from __future__ import annotations

import colorsys

_LIGHT = ("#2563a8", "#c2570c", "#2f7d4f", "#8a4fa3", "#b3374a", "#6b6400", "#0f7c88", "#7a5233")
_DARK = ("#74aef0", "#f2a25c", "#6cc48c", "#cf9ee6", "#f28b99", "#cfc653", "#55c6d2", "#cda57c")
_FIRST_HUE, _LAST_HUE = 0.66, 0.0


def colours(count: int) -> list[tuple[str, str]]:
    """Return for each of `count` settings a colour (on light ground, on dark ground).

    Up to eight have colours of their own. More have a ramp from blue to red in the order of their values: nobody tells
    twenty colours apart, but high from low everybody.
    """
    if count <= len(_LIGHT):
        return list(zip(_LIGHT[:count], _DARK[:count], strict=True))
    hues = [_FIRST_HUE + (_LAST_HUE - _FIRST_HUE) * place / (count - 1) for place in range(count)]
    return [(_hex(hue, 0.36, 0.75), _hex(hue, 0.66, 0.80)) for hue in hues]


def _hex(hue: float, lightness: float, saturation: float) -> str:
    parts = colorsys.hls_to_rgb(hue, lightness, saturation)
    return "#" + "".join(f"{round(255 * part):02x}" for part in parts)
