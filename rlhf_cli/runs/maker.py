"""Says who made a run, in a way that a folder from elsewhere cannot claim: a mark by a key that only its maker has.

The key lies in the user's cache folder and is made when it is first needed. A run's mark is the HMAC-SHA256 of the code
that the run names, so it holds wherever the folder is moved, on every machine that shares the cache, and no longer when
other code is named. A user's name or a host's is shown, and believed by nobody: whoever packs a folder can write both.
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
    """Return what provenance.json says of the maker; no mark where a run names no code, or no key can be kept."""
    maker = {"user": _user()}
    key = _key(create=True) if code else None
    return {**maker, "mark": _mark(key, code)} if key is not None else maker


def is_made_by_us(run: RunFolder, code: Sequence[str]) -> bool:
    """Return whether a run's mark is that of this user's key for exactly this code."""
    mark, key = section(read_json(run.provenance), "made_by").get("mark"), _key(create=False)
    return key is not None and isinstance(mark, str) and hmac.compare_digest(mark.encode(), _mark(key, code).encode())


def maker_of(run: RunFolder) -> str:
    """Return who a run says that made it: a user and a host, as far as it says so."""
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
    """Return this user's key; None where there is none, it is another user's, or it cannot be written."""
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
        os.link(temporary, file)  # fails where another process was faster, whose key holds
    except FileExistsError:
        pass
    finally:
        temporary.unlink()
