"""Give a user's file a module name that any process with this package can import, and locate the cache folder.

`import rewards` may not find `./rewards.py`. A process that is spawned, such as one of a pool in a reward, imports the
module of a function by its name: it imports this module first, which then finds the file.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import platformdirs

__path__: list[str] = []  # this makes a package of the module


def name_of(path: Path) -> str:
    """Return the module name of a file; it holds the path."""
    return f"{__name__}.{path.stem.replace('.', '_')}_{str(path).encode().hex()}"


class _Finder:
    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if not name.startswith(f"{__name__}."):
            return None
        return importlib.util.spec_from_file_location(name, bytes.fromhex(name.rpartition("_")[2]).decode())


sys.meta_path.append(_Finder)


def cache_folder(name: str) -> Path:
    """Return the subfolder `name` of $RLHF_CACHE or else of the user's cache folder; it may not exist yet."""
    return Path(os.environ.get("RLHF_CACHE") or platformdirs.user_cache_dir("rlhf")) / name
