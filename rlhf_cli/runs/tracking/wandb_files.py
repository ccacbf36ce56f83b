"""Find what wandb has recorded offline, and upload it with `wandb sync`.

A record is a LevelDB log (github.com/google/leveldb, doc/log_format.md) after a header of seven bytes: blocks of 32 KiB
that hold chunks of checksum (4 bytes), length (2), type (1) and that many bytes of data.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from rlhf_cli.text.redaction import redacted

_SENT = ".synced"
"""Suffix of wandb's own marker, an empty file beside a record that was fully sent."""
_HEADER_BYTES, _BLOCK_BYTES, _CHUNK_HEADER_BYTES = 7, 32 * 1024, 7
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4


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
    """Upload records with `wandb sync`, attempts of one run in order, and return its output.

    No process may still be writing them.
    """
    for file in files:
        cut_off_half_a_record(file)
    command = [sys.executable, "-m", "wandb", "sync", "--include-online", *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    return redacted((done.stdout + done.stderr).strip())


def cut_off_half_a_record(file: Path) -> None:
    """Truncate the file of a killed process to its complete part.

    Otherwise `wandb sync` sends the complete part, reports a failure, and sends it again the next time.
    """
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
