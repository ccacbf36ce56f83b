"""Holds what every section of a configuration has in common."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A part of the configuration that refuses unknown keys and wrong types, and cannot be changed once judged."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, serialize_by_alias=True, defer_build=True)
