"""Choose colours for settings that most people can tell apart on light and dark backgrounds."""

from __future__ import annotations

import colorsys

_LIGHT = ("#2563a8", "#c2570c", "#2f7d4f", "#8a4fa3", "#b3374a", "#6b6400", "#0f7c88", "#7a5233")
_DARK = ("#74aef0", "#f2a25c", "#6cc48c", "#cf9ee6", "#f28b99", "#cfc653", "#55c6d2", "#cda57c")
_FIRST_HUE, _LAST_HUE = 0.66, 0.0


def colours(count: int) -> list[tuple[str, str]]:
    """Return one (colour on light background, colour on dark background) per setting.

    Up to eight settings have distinct colours. More get a ramp from blue to red in their order: twenty colours are hard
    to tell apart, but high and low are easy.
    """
    if count <= len(_LIGHT):
        return list(zip(_LIGHT[:count], _DARK[:count], strict=True))
    hues = [_FIRST_HUE + (_LAST_HUE - _FIRST_HUE) * place / (count - 1) for place in range(count)]
    return [(_hex(hue, 0.36, 0.75), _hex(hue, 0.66, 0.80)) for hue in hues]


def _hex(hue: float, lightness: float, saturation: float) -> str:
    parts = colorsys.hls_to_rgb(hue, lightness, saturation)
    return "#" + "".join(f"{round(255 * part):02x}" for part in parts)
