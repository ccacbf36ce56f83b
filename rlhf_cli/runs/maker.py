"""Prove who made a run with a signature that a folder from elsewhere cannot forge.

The key is in the user's cache folder and is created when first needed. A run's mark is the HMAC-SHA256 of the code that
the run names. It stays valid if the folder moves, on every machine that shares the cache, and becomes invalid if the
run names other code. User and host names are only displayed, never trusted: anyone who packs a folder can write them.
"""

from __future__ import annotations

import contextlib
import getpass
import hashlib
import hmac
import os
import secrets
from collections.abc import Sequence
from pathlib import Path

from rlhf_cli.cache_folder import cache_folder
from rlhf_cli.json_values import section
from rlhf_cli.runs.run_folder import RunFolder, read_json

_KEY_BYTES = 32


def made_by(code: Sequence[str]) -> dict[str, str]:
    """Return the maker's entry for provenance.json; without a mark if the run names no code or has no key."""
    maker = {"user": _user()}
    key = _key(create=True) if code else None
    return {**maker, "mark": _mark(key, code)} if key is not None else maker


def is_made_by_us(run: RunFolder, code: Sequence[str]) -> bool:
    """Return whether a run's mark was made with this user's key for exactly this code."""
    mark, key = section(read_json(run.provenance), "made_by").get("mark"), _key(create=False)
    return key is not None and isinstance(mark, str) and hmac.compare_digest(mark.encode(), _mark(key, code).encode())


def maker_of(run: RunFolder) -> str:
    """Return the user and host that a run claims as its maker."""
    provenance = read_json(run.provenance)
    user, host = section(provenance, "made_by").get("user"), section(provenance, "host").get("name")
    return f"{user or 'somebody'} on {host}" if host else str(user or "nobody knows whom")


def _mark(key: bytes, code: Sequence[str]) -> str:
    return hmac.new(key, "\0".join(sorted(code)).encode(), hashlib.sha256).hexdigest()


def _user() -> str:
    with contextlib.suppress(OSError, KeyError):  # a container's user may have no name
        return getpass.getuser()
    return str(os.getuid())


def _key(*, create: bool) -> bytes | None:
    """Return this user's key, or None if it is missing, owned by another user, or cannot be written."""
    file = cache_folder("maker") / f"key-{os.getuid()}"
    with contextlib.suppress(OSError):
        if create and not file.exists():
            _write_key(file)
        if file.stat().st_uid == os.getuid():
            return file.read_bytes()
    return None


def _write_key(file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(secrets.token_bytes(_KEY_BYTES))
    try:
        os.link(temporary, file)  # fails if another process was faster; its key is used then
    except FileExistsError:
        pass
    finally:
        temporary.unlink()
