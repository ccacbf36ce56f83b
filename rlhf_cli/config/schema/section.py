"""What every section of a configuration has in common."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A part of the configuration; immutable once judged."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, serialize_by_alias=True)
