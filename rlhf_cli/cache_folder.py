"""Says in which folder lies what took long to make or to ask for and is kept between runs."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs


def cache_folder(name: str) -> Path:
    """Return the part called `name` of $RLHF_CACHE, else of the user's cache folder; it need not be there yet."""
    return Path(os.environ.get("RLHF_CACHE") or platformdirs.user_cache_dir("rlhf")) / name
