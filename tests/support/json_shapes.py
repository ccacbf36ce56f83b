"""What docs/reference/json.md says that a verb prints with `--json`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "json.md"
MORE = "and the figures"


def described() -> dict[str, list[str]]:
    """Return verb -> the second cells of its rows."""
    cells: dict[str, list[str]] = {}
    for line in PAGE.read_text(encoding="utf-8").partition("## What each verb prints")[2].splitlines():
        if line.startswith("| `"):
            typed, keys = line.strip("| ").split(" | ")
            for verb in {one.split()[0] for one in re.findall("`([^`]+)`", typed)}:
                cells.setdefault(verb, []).append(keys)
    return cells


def is_described(verb: str, value: Any) -> bool:
    """Return whether a row of the verb has exactly the keys of the value, or of the first object of a list."""
    found = set(value[0] if isinstance(value, list) and value else value)
    for cell in described()[verb]:
        keys = re.findall(r"`(\w+\??)`", cell)
        needed, known = {key for key in keys if not key.endswith("?")}, {key.removesuffix("?") for key in keys}
        if needed <= found and (found <= known or MORE in cell):
            return True
    return not found
