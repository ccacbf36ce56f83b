"""Keeps models that are made here once: the embedded tiny model, an adapter merged into its base."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock

from rlhf_cli.cache_folder import cache_folder


def made_once(name: str, make: Callable[[Path], None]) -> Path:
    """Return the folder of the model called `name`, which `make` writes on first use.

    Made aside and renamed, so that an interruption leaves no half-written model behind. Safe to call from several
    processes at once: the first makes it, the others wait.
    """
    folder = cache_folder("models") / name
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not (folder / "config.json").is_file():
            shutil.rmtree(folder, ignore_errors=True)  # half a model is none
            with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
                unfinished = Path(temporary, "model")
                make(unfinished)
                unfinished.rename(folder)
    return folder
