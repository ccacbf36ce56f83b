"""Locate the user's cache folder."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs


def cache_folder(name: str) -> Path:
    """Return the subfolder `name` of $RLHF_CACHE or else of the user's cache folder; it may not exist yet."""
    return Path(os.environ.get("RLHF_CACHE") or platformdirs.user_cache_dir("rlhf")) / name
