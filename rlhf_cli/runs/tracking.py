"""Mirrors the run folder in wandb, which may be absent, logged out or offline without the run noticing."""

from __future__ import annotations

import hashlib
import netrc
import os
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlparse

from rlhf_cli.json_values import JsonTree, section
from rlhf_cli.redaction import redacted
from rlhf_cli.runs.provenance import add_to_provenance
from rlhf_cli.runs.run_folder import RunFolder, read_json

_CONNECT_TIMEOUT_S = 3.0
Mode = Literal["online", "offline", "none"]


@dataclass(frozen=True)
class TrackingPlan:
    """A plan that says what wandb will really do.

    `mode` is online, offline or none; `notice` is why it is not what was asked for, None where it is.
    """

    mode: Mode
    notice: str | None = None


def plan_tracking(mode: Mode) -> TrackingPlan:
    """Decide in seconds, before anything is loaded: online only where there is a login and a server that answers."""
    if mode != "online":
        return TrackingPlan(mode)
    base_url = os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")
    offline = "recording offline instead; `wandb sync RUN/wandb/offline-*` uploads it, track=wandb_offline asks for it"
    try:
        url = urlparse(base_url)
        host, port = url.hostname or "api.wandb.ai", url.port or (80 if url.scheme == "http" else 443)
    except ValueError as error:
        return TrackingPlan("offline", f"WANDB_BASE_URL is no address ({error}): {offline}")
    if not _has_login(host):
        return TrackingPlan("offline", f"no wandb login (`wandb login`, or set WANDB_API_KEY): {offline}")
    try:
        socket.create_connection((host, port), timeout=_CONNECT_TIMEOUT_S).close()
    except OSError as error:
        return TrackingPlan("offline", f"{host} does not answer ({error}): {offline}")
    return TrackingPlan("online")


@contextmanager
def tracked(folder: RunFolder, config: JsonTree, mode: Mode) -> Iterator[None]:
    """Keep a wandb run open around a training run, on the main process. `config` is the resolved experiment, nested.

    TRL's and transformers' callbacks log into the wandb run that is open. Its id is in the run's provenance, so that a
    resumed run goes on in it, wherever its folder lies by then.
    """
    if mode == "none":
        yield
        return
    import wandb

    # Else a copy of every table is left in the user's home, where nobody looks for it.
    os.environ.setdefault("WANDB_DATA_DIR", str(folder.path / "wandb"))
    track = section(config, "track")
    tags = track["tags"] if isinstance(track["tags"], list) else []
    provenance = read_json(folder.provenance)
    choices = section(provenance, "choices")
    settings: dict[str, Any] = {
        "project": track["project"],
        "entity": track["entity"],
        "name": folder.label,
        "group": folder.sweep_group,
        "job_type": section(config, "trainer")["name"],
        "tags": [
            *(choices[group] for group in ("exp", "model", "data") if choices.get(group)),
            *(tags if isinstance(tags, list) else []),
        ],
        "notes": track["notes"],
        "config": {**config, "provenance": provenance},
        "dir": str(folder.path),
        "id": _run_id(folder, provenance),
        "resume": "allow",
    }
    quiet = wandb.Settings(silent=True, console="off", init_timeout=30)
    with _redacted_command_line():
        try:
            wandb.init(**settings, mode=mode, settings=quiet)
        except wandb.errors.Error:
            # The server answered a minute ago and does not now. A run is worth more than its mirror.
            wandb.init(**settings, mode="offline", settings=quiet)
    try:
        yield
    finally:
        wandb.finish()


@contextmanager
def _redacted_command_line() -> Iterator[None]:
    """Let wandb, which keeps the command line as it was typed, see it without secrets."""
    typed = sys.argv
    sys.argv = [redacted(word) for word in typed]
    try:
        yield
    finally:
        sys.argv = typed


def mirror_table(name: str, step: int, rows: Sequence[Mapping[str, object]]) -> None:
    """Log rows as a table of the active wandb run; do nothing where there is none."""
    wandb = sys.modules.get("wandb")  # where a run is active it was imported
    if wandb is None or getattr(wandb, "run", None) is None:
        return
    table = wandb.Table(columns=list(rows[0]), data=[list(row.values()) for row in rows])
    wandb.log({name: table, "train/global_step": step})


def _run_id(folder: RunFolder, provenance: JsonTree) -> str:
    """Return wandb's id of this run; of one that was begun before ids were kept, what it was called then: its path."""
    known = provenance.get("wandb_id")
    if isinstance(known, str):
        return known
    of_path = hashlib.sha256(str(folder.path).encode()).hexdigest()[:10]
    add_to_provenance(folder, wandb_id=of_path)  # so that it may be moved from now on
    return of_path


def _has_login(host: str) -> bool:
    if os.environ.get("WANDB_API_KEY"):
        return True
    try:
        return netrc.netrc().authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False
