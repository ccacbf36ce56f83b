"""Find what wandb has recorded offline, and upload it with `wandb sync` if its server answers.

A record is a LevelDB log (github.com/google/leveldb, doc/log_format.md) after a header of seven bytes: blocks of 32 KiB
that hold chunks of checksum (4 bytes), length (2), type (1) and that many bytes of data.
"""

from __future__ import annotations

import netrc
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal
from urllib.parse import urlparse

from rlhf_cli.errors import RunError, UserError
from rlhf_cli.runs.run_folder import RunFolder, runs_in
from rlhf_cli.runs.run_status import RUNNING, read_status
from rlhf_cli.text.json_values import section
from rlhf_cli.text.redaction import redacted

_SENT = ".synced"  # suffix of wandb's own marker, an empty file beside a record that was fully sent
_HEADER_BYTES, _BLOCK_BYTES, _CHUNK_HEADER_BYTES = 7, 32 * 1024, 7
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_CONNECT_TIMEOUT_S = 3.0
LOGIN_ERRORS = (OSError, ValueError, netrc.NetrcParseError)  # of the address or the login; they may hold a key


def records_of(folder: Path) -> list[Path]:
    """Return wandb's records in `folder`/wandb, one per attempt of a run, earliest first."""
    files = (folder / "wandb").glob("*run-*/run-*.wandb")
    return sorted(files, key=lambda file: file.parent.name.partition("run-")[2])


def unsent(folder: Path) -> list[Path]:
    """Return the records of a folder that were not fully sent."""
    return [file for file in records_of(folder) if not _mark_of(file).exists()]


def mark_sent(record_folder: str | Path) -> None:
    """Mark the records in a wandb folder as sent, as `wandb sync` does."""
    for file in Path(record_folder).glob("run-*.wandb"):
        _mark_of(file).touch()


def _mark_of(file: Path) -> Path:
    return file.with_name(file.name + _SENT)


def upload(files: Sequence[Path]) -> str:
    """Upload records, in order and no longer written, by `wandb sync`, which marks the sent ones; return its output."""
    for file in files:
        cut_off_half_a_record(file)
    command = [sys.executable, "-m", "wandb", "sync", "--include-online", *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    return redacted((done.stdout + done.stderr).strip())


def cut_off_half_a_record(file: Path) -> None:
    """Truncate a killed process's file: `wandb sync` would report a failure and send it again."""
    log = file.read_bytes()
    place, complete = _HEADER_BYTES, 0
    while place + _CHUNK_HEADER_BYTES <= len(log):
        left = _BLOCK_BYTES - place % _BLOCK_BYTES
        if left < _CHUNK_HEADER_BYTES:
            place += left  # too small for a chunk, so padded with zeros
            continue
        kind = log[place + 6]
        place += _CHUNK_HEADER_BYTES + int.from_bytes(log[place + 4 : place + 6], "little")
        if kind not in (_FULL, _FIRST, _MIDDLE, _LAST) or place > len(log):
            break
        if kind in (_FULL, _LAST):
            complete = place
    if 0 < complete < len(log):
        with file.open("r+b") as stream:
            stream.truncate(complete)


@dataclass(frozen=True)
class Sending:
    """The upload state of a folder's records. `why` explains records that were not sent."""

    folder: Path
    state: Literal["to send", "sent", "already sent", "nothing to send", "still running", "not sent"]
    files: tuple[Path, ...] = ()
    why: str = ""


def to_send(places: Sequence[Path]) -> list[Sending]:
    """Return every run below `places`; one that trains is skipped. Raises RunError without runs."""
    return [_of_run(run) for run in dict.fromkeys(run for place in places for run in runs_in(place))]


def send(sendings: Sequence[Sending]) -> list[Sending]:
    """Upload pending records and return the result of each. Raises UserError without a login or a server."""
    files = [file for one in sendings if one.state == "to send" for file in one.files]
    if not files:
        return list(sendings)
    if (problem := why_not_online()) is not None:  # `wandb sync` would try for days
        raise problem
    output = upload(files)
    return [_after(sending, output) if sending.state == "to send" else sending for sending in sendings]


def _of_run(run: RunFolder) -> Sending:
    try:
        is_running = read_status(run).state == RUNNING
        track = section(run.read_config(), "track")
    except RunError as error:  # the others are sent
        return Sending(run.path, "not sent", why=error.what)
    if records_of(run.path) and is_running:
        return Sending(run.path, "still running", why="it is sent once it has ended")
    if waiting := unsent(run.path):
        return Sending(run.path, "to send", tuple(waiting))
    if records := records_of(run.path):
        return Sending(run.path, "already sent", tuple(records))
    tracker = track.get("tracker", "wandb")
    why = "wandb recorded nothing" if tracker == "wandb" else f"tracked by {tracker}"
    return Sending(run.path, "nothing to send", why="track=none" if track.get("mode") == "none" else why)


def _after(sending: Sending, output: str) -> Sending:
    """Return the state after an upload: what is left was not sent, for the reason that wandb's output gives."""
    left = unsent(sending.folder)
    if not left:
        return replace(sending, state="sent")
    lines = [line.removeprefix("wandb:").strip() for line in output.splitlines() if line.strip()]
    named = [line for line in lines if left[0].parent.name in line or left[0].stem in line]
    errors = [line for line in named or lines if "error" in line.lower()]
    return replace(sending, state="not sent", why=(errors or lines or ["wandb said nothing"])[-1])


def why_not_online() -> UserError | None:
    """Return why nothing can be sent to wandb: its address, the login, or a server that does not answer in seconds."""
    try:
        host, port = wandb_address()
        is_known = has_login(host)
    except LOGIN_ERRORS as error:
        what, hint = "WANDB_BASE_URL or netrc is wrong", "unset WANDB_BASE_URL, or wandb login"
        return UserError(what, got=type(error).__name__, hint=hint)
    if not is_known:
        what, got = f"there is no wandb login for {host}", "no WANDB_API_KEY, and no login in ~/.netrc"
        return UserError(what, got=got, hint="wandb login, or export WANDB_API_KEY=...")
    try:
        socket.create_connection((host, port), timeout=_CONNECT_TIMEOUT_S).close()
    except OSError as error:
        advice = "type the same command again with a network"
        return UserError("wandb cannot be reached", got=f"{host} does not answer ({error})", advice=advice)
    return None


def wandb_address() -> tuple[str, int]:
    """Return host and port of wandb's server. Raises ValueError if WANDB_BASE_URL is not a valid address."""
    url = urlparse(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai"))
    return url.hostname or "api.wandb.ai", url.port or (80 if url.scheme == "http" else 443)


def has_login(host: str) -> bool:
    """Return whether there are wandb credentials, from the environment or `wandb login`. Raises LOGIN_ERRORS."""
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    file = Path(os.environ.get("NETRC") or "~/.netrc").expanduser()
    return file.is_file() and netrc.netrc(str(file)).authenticators(host) is not None
