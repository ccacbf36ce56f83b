"""Turns numbers into what JSON can hold: it has neither NaN nor infinity."""

from __future__ import annotations

import math
from typing import TypeVar

_Value = TypeVar("_Value")


def finite_or_none(value: _Value) -> _Value | None:
    """Return None for a float that is no finite number; everything else as it is."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
