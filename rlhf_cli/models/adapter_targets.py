"""Says which modules `model.lora.target_modules` means, as peft reads it, by their names alone.

A text is a pattern for a module's whole name, a name in a list is its end (peft's `check_target_module_exists`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_PREFIXES = ("", "model.", "transformer.", "base_model.model.")
"""What stands before a module's name in the model and may not in its file."""


def is_target(name: str, targets: str | Sequence[str]) -> bool:
    """Return whether peft would put an adapter on the module `name`; a pattern that is none means no module."""
    if not isinstance(targets, str):
        return any(name == target or name.endswith(f".{target}") for target in targets)
    try:
        return any(re.fullmatch(targets, prefix + name) for prefix in _PREFIXES)
    except re.error:
        return False
