"""Define what all sections of a configuration share, and the type of a duration."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A part of the configuration that refuses unknown keys and wrong types, and cannot be changed once judged."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, serialize_by_alias=True, defer_build=True)


def seconds_or_off(value: object) -> object:
    """Return a time in seconds, or `off`, which YAML reads as false where a file has it without quotes.

    Raises ValueError for anything else.
    """
    if value is False or value == "off":
        return "off"
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise ValueError("seconds, more than 0; or off")
    return float(value)


def seconds_auto_or_off(value: object) -> object:
    """Return the same, or `auto`; null is `off`, as configurations that were frozen earlier have it.

    Raises ValueError for anything else.
    """
    if value is None or value == "auto":
        return value or "off"
    try:
        return seconds_or_off(value)
    except ValueError as error:
        raise ValueError(f"{error}; or auto") from None
