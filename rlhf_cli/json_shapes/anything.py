"""Names what a shape leaves open: any value of JSON, an object whose keys are the user's or are described elsewhere."""

from __future__ import annotations

from typing import TypeAlias

from pydantic import JsonValue

Anything: TypeAlias = JsonValue
Tree: TypeAlias = dict[str, JsonValue]
