"""Cache models that are built locally: the embedded tiny model, an adapter merged into its base."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock

from rlhf_cli.cache_folder import cache_folder


def made_once(name: str, make: Callable[[Path], None]) -> Path:
    """Return the folder of the model called `name`; on first use `make` writes it.

    Write to a temporary folder and rename it, so that an interruption leaves no half-written model. Safe to call from
    several processes at once: the first builds the model, the others wait.
    """
    folder = cache_folder("models") / name
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not (folder / "config.json").is_file():
            shutil.rmtree(folder, ignore_errors=True)  # an incomplete model
            with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
                unfinished = Path(temporary, "model")
                make(unfinished)
                unfinished.rename(folder)
    return folder
