"""Keeps a judge's replies on disk: one small JSON file a request, named by the request's hash. No key is in it."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path


class ReplyCache:
    """A cache that is safe with several processes: files are written beside and renamed, so each is whole or absent."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self, request: Mapping[str, object]) -> str | None:
        """Return the reply to an equal request, None where there is none, or none that can be read."""
        try:
            reply = json.loads(self._file(request).read_text(encoding="utf-8"))["reply"]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return reply if isinstance(reply, str) else None

    def write(self, request: Mapping[str, object], reply: str) -> None:
        """Keep a reply. A disk that is full or read-only costs the cache, not the run."""
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
