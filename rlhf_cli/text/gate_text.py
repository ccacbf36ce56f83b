"""Write the condition of a reward's gate in a few characters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def gate_text(gate: Mapping[str, Any]) -> str:
    """Return a gate's condition as in `correct >= 1`. gate: its keys `by` and `at_least`, `at_most`, ... as in YAML."""
    if gate.get("between") is not None:
        low, high = gate["between"]
        return f"{low:g} <= {gate['by']} <= {high:g}"
    signs = {"at_least": ">=", "at_most": "<=", "equals": "="}
    return "".join(f"{gate['by']} {sign} {gate[name]:g}" for name, sign in signs.items() if gate.get(name) is not None)
