"""Define the types of JSON values, and replace NaN and infinity, which JSON does not have."""

from __future__ import annotations

import math
from typing import TypeAlias, TypeVar

JsonValue: TypeAlias = "bool | int | float | str | list[JsonValue] | dict[str, JsonValue] | None"
"""A value in a JSON or YAML file, or in a composed configuration."""

JsonTree: TypeAlias = "dict[str, JsonValue]"
"""A whole file, or a section of it: key -> value."""

_Value = TypeVar("_Value")


def section(tree: JsonTree, name: str) -> JsonTree:
    """Return the section `name`, or an empty one if it is missing or not a mapping."""
    found = tree.get(name)
    return found if isinstance(found, dict) else {}


def finite_or_none(value: _Value) -> _Value | None:
    """Return None for a NaN or infinite float; any other value unchanged."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
