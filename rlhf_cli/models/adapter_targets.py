"""Match module names against `model.lora.target_modules`, like peft.

A string is a regular expression for the whole module name; a list contains name suffixes (peft's
`check_target_module_exists`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_PREFIXES = ("", "model.", "transformer.", "base_model.model.")
"""Prefixes of module names that the model has and its weight files may lack."""


def is_target(name: str, targets: str | Sequence[str]) -> bool:
    """Return whether peft would put an adapter on the module `name`; an invalid pattern matches no module."""
    if not isinstance(targets, str):
        return any(name == target or name.endswith(f".{target}") for target in targets)
    try:
        return any(re.fullmatch(targets, prefix + name) for prefix in _PREFIXES)
    except re.error:
        return False
