"""Says what JSON can hold, and turns numbers into it: it has neither NaN nor infinity."""

from __future__ import annotations

import math
from typing import TypeAlias, TypeVar

JsonValue: TypeAlias = "bool | int | float | str | list[JsonValue] | dict[str, JsonValue] | None"
"""What stands in a file of JSON or YAML, and in a composed configuration."""

JsonTree: TypeAlias = "dict[str, JsonValue]"
"""A whole such file, or a section of it: key -> value."""

_Value = TypeVar("_Value")


def section(tree: JsonTree, name: str) -> JsonTree:
    """Return the section of that name; an empty one where there is none, or something else stands there."""
    found = tree.get(name)
    return found if isinstance(found, dict) else {}


def finite_or_none(value: _Value) -> _Value | None:
    """Return None for a float that is no finite number; everything else as it is."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
