"""Defines what the machines of a run say to one another: JSON that is checked, never anything that is run.

The first machine makes an offer once; from then on each says over and over how it is doing. What proves that two see
the same run folder is a secret in it, which nobody says.
"""

from __future__ import annotations

import hashlib
import hmac
import importlib.metadata
import json
import os
import platform
import secrets
from dataclasses import asdict, dataclass, field
from functools import cache
from typing import Literal

from pydantic import TypeAdapter

import rlhf_cli
from rlhf_cli.errors import RunError
from rlhf_cli.launch.rank_failures import RankFailure
from rlhf_cli.launch.ranks import Ended
from rlhf_cli.runs.run_folder import RunFolder, read_json

Ending = Literal["", "leaving", "failing"]
"""Nothing ends yet; some rank was stopped, and the others are about to be; something failed."""

_ENDINGS: tuple[Ending, ...] = ("", "leaving", "failing")
_MATTER = ("torch", "trl", "transformers", "accelerate", "peft")
_SECRET_FILE = ".meeting.json"
_SECRET_BYTES = 32


@dataclass(frozen=True)
class Offer:
    """What the first machine has to offer to the others: a run folder, and what its ranks are.

    `mark` shows that whoever offers it can read the folder's secret. `processes` are those of one machine.
    """

    run: str
    mark: str
    host: str
    nodes: int
    processes: int
    on_gpus: bool
    resume: bool
    versions: dict[str, str]


@dataclass(frozen=True)
class Verdict:
    """What became of the run: the exit code of the first machine's command and what it says."""

    exit_code: int
    message: str


@dataclass(frozen=True)
class Said:
    """How a machine is doing. `name` is made up by it anew for every start, and `proof` shows that it can read the
    folder's secret; `beat` counts how often it has said something, `clock` is its time in seconds since the epoch.

    `asked` is how often somebody asked for an end, anywhere, as far as it has heard. `ended` and `failures` are of its
    own ranks; `is_done` once none of them runs any more, `has_left` once it will say nothing more. Only the first says
    `is_begun` and the `verdict`.
    """

    name: str
    host: str
    proof: str = ""
    beat: int = 0
    clock: float = 0.0
    is_begun: bool = False
    asked: int = 0
    asked_by: str | None = None
    ending: Ending = ""
    ended: list[Ended] = field(default_factory=list)
    failures: list[RankFailure] = field(default_factory=list)
    is_done: bool = False
    has_left: bool = False
    verdict: Verdict | None = None


def encode(words: Offer | Said) -> str:
    """Return the JSON of what is said."""
    return json.dumps(asdict(words))


def decode_offer(text: bytes) -> Offer:
    """Return what is offered. Raises ValueError where it is anything else."""
    return TypeAdapter(Offer).validate_json(text)


def decode_said(text: bytes) -> Said:
    """Return what was said. Raises ValueError where it is anything else."""
    return _said().validate_json(text)


@cache
def _said() -> TypeAdapter[Said]:
    return TypeAdapter(Said)


def worst(*endings: Ending) -> Ending:
    """Return the ending that outweighs the others."""
    return max(endings, key=_ENDINGS.index)


def versions() -> dict[str, str]:
    """Return the versions of what trains, on this machine."""
    found = {"rlhf": rlhf_cli.__version__, "python": platform.python_version()}
    for package in _MATTER:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "none"
    return found


def make_secret(folder: RunFolder) -> str:
    """Write a new secret into the run folder, for this user's eyes, and return it."""
    secret, file = secrets.token_hex(_SECRET_BYTES), folder.path / _SECRET_FILE
    file.unlink(missing_ok=True)
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
        json.dump({"secret": secret}, stream)
    return secret


def read_secret(folder: RunFolder) -> str | None:
    """Return the secret in the run folder, None where this machine sees none."""
    try:
        secret = read_json(folder.path / _SECRET_FILE).get("secret")
    except RunError:
        return None
    return secret if isinstance(secret, str) else None


def forget_secret(folder: RunFolder) -> None:
    """Remove the secret: nobody can join any more."""
    (folder.path / _SECRET_FILE).unlink(missing_ok=True)


def proof(secret: str, name: str) -> str:
    """Return what shows that the machine of that name knows the secret."""
    return hmac.new(secret.encode(), name.encode(), hashlib.sha256).hexdigest()


def is_proof(text: str, secret: str, name: str) -> bool:
    """Return whether that is what `proof` returns."""
    return hmac.compare_digest(text.encode(), proof(secret, name).encode())
