"""Format a duration for people."""

from __future__ import annotations

_MINUTE_S, _HOUR_S, _DAY_S = 60, 3600, 86400


def span(span_s: float | None) -> str:
    """Return a duration in its one or two largest units: `40 s`, `12 min`, `3 h 20 min`, `2 d 4 h`; '' for None."""
    if span_s is None:
        return ""
    if span_s < _MINUTE_S:
        return f"{span_s:.0f} s"
    if span_s < _HOUR_S:
        return f"{span_s // _MINUTE_S:.0f} min"
    if span_s < _DAY_S:
        return f"{span_s // _HOUR_S:.0f} h {span_s % _HOUR_S // _MINUTE_S:.0f} min"
    return f"{span_s // _DAY_S:.0f} d {span_s % _DAY_S // _HOUR_S:.0f} h"
