"""Locate the user's cache folder, and keep the replies of servers in it."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

import platformdirs


def cache_folder(name: str) -> Path:
    """Return the subfolder `name` of $RLHF_CACHE or else of the user's cache folder; it may not exist yet."""
    return Path(os.environ.get("RLHF_CACHE") or platformdirs.user_cache_dir("rlhf")) / name


class ReplyCache:
    """A cache that several processes can share: files are renamed into place, so each is whole or absent."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self, request: Mapping[str, object]) -> str | None:
        """Return the reply to an equal request, or None if it is missing or unreadable."""
        try:
            reply = json.loads(self._file(request).read_text(encoding="utf-8"))["reply"]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return reply if isinstance(reply, str) else None

    def write(self, request: Mapping[str, object], reply: str) -> None:
        """Store a reply. A full or read-only disk is ignored, so that the run continues."""
        file = self._file(request)
        with contextlib.suppress(OSError):
            file.parent.mkdir(parents=True, exist_ok=True)
            descriptor, beside = tempfile.mkstemp(dir=file.parent, suffix=".new")
            try:
                with os.fdopen(descriptor, "w", encoding="utf-8", errors="replace") as stream:
                    json.dump({"model": request["model"], "reply": reply}, stream, ensure_ascii=False)
                os.replace(beside, file)
            except BaseException:
                os.unlink(beside)
                raise

    def _file(self, request: Mapping[str, object]) -> Path:
        digest = hashlib.sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()
        return self._folder / digest[:2] / f"{digest}.json"
