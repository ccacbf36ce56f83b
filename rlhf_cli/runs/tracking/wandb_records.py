"""Find what wandb has recorded offline, and say where to look at a run.

A record is a LevelDB log (github.com/google/leveldb, doc/log_format.md) after a header of seven bytes. It has blocks of
32 KiB, with chunks of checksum (4 bytes), length (2), type (1) and that many bytes of data. The chunks of one record
together are a message of wandb's protocol.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.tracking.tracker import STEP, store_uri
from rlhf_cli.text.json_values import section

_SENT = ".synced"
"""Suffix of wandb's own marker, an empty file beside the record."""


@dataclass(frozen=True, order=True)
class Record:
    """One wandb file: one attempt of a run. Records sort by creation time."""

    made_at: str
    file: Path
    is_offline: bool

    @property
    def is_sent(self) -> bool:
        """Return whether the server has all of it."""
        return _mark_of(self.file).exists()


def records_of(folder: Path) -> list[Record]:
    """Return wandb's records in `folder`/wandb, earliest attempt first."""
    records = []
    for file in (folder / "wandb").glob("*run-*/run-*.wandb"):
        name = file.parent.name
        made_at = name.partition("run-")[2].partition("-")[0]
        records.append(Record(made_at, file, is_offline=name.startswith("offline-")))
    return sorted(records)


def unsent(folder: Path) -> list[Record]:
    """Return the records of a folder that were not fully sent."""
    return [record for record in records_of(folder) if not record.is_sent]


def mark_sent(record_folder: str | Path) -> None:
    """Mark the records in a wandb folder as sent, as `wandb sync` does."""
    for file in Path(record_folder).glob("run-*.wandb"):
        _mark_of(file).touch()


def _mark_of(file: Path) -> Path:
    return file.with_name(file.name + _SENT)


_HEADER_BYTES = 7
_BLOCK_BYTES = 32 * 1024
_CHUNK_HEADER_BYTES = 7
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4


def last_step(file: Path) -> int | None:
    """Return the largest `train/global_step` in a record's rows, or None. Ignores an incomplete end."""
    from wandb.proto import wandb_internal_pb2

    steps = []
    for content, _ in _contents(file.read_bytes()):
        if STEP.encode() not in content:
            continue
        record = wandb_internal_pb2.Record.FromString(content)  # type: ignore[attr-defined]
        values = (item.value_json for item in record.history.item if STEP in (item.key, *item.nested_key))
        steps += [int(json.loads(value)) for value in values]
    return max(steps, default=None)


def cut_off_half_a_record(file: Path) -> bool:
    """Truncate a killed process's record to its complete part; return whether anything was cut off.

    Otherwise `wandb sync` sends the complete part, reports a failure, and sends it again the next time. No process may
    still be writing the file.
    """
    log = file.read_bytes()
    end = max((end for _, end in _contents(log)), default=0)
    if not 0 < end < len(log):
        return False
    with file.open("r+b") as stream:
        stream.truncate(end)
    return True


def _contents(log: bytes) -> Iterator[tuple[bytes, int]]:
    """Yield (content, end offset) of the complete records of a log."""
    place, content = _HEADER_BYTES, b""
    while place + _CHUNK_HEADER_BYTES <= len(log):
        left = _BLOCK_BYTES - place % _BLOCK_BYTES
        if left < _CHUNK_HEADER_BYTES:
            place += left  # too small for a chunk, so padded with zeros
            continue
        length = int.from_bytes(log[place + 4 : place + 6], "little")
        kind = log[place + 6]
        start = place + _CHUNK_HEADER_BYTES
        if kind not in (_FULL, _FIRST, _MIDDLE, _LAST) or start + length > len(log):
            return
        chunk = log[start : start + length]
        content = chunk if kind in (_FULL, _FIRST) else content + chunk
        place = start + length
        if kind in (_FULL, _LAST):
            yield content, place


def where_to_look(folder: RunFolder) -> dict[str, str]:
    """Return command -> description for a run's tracker; {} without a tracker or if wandb has all data."""
    track = section(folder.read_config(), "track")
    project = str(track.get("project"))
    if track.get("mode") == "none":
        return {}
    if unsent(folder.path):
        return {f"rlhf sync {folder.shown}": "send it to wandb: it was recorded here"}
    match track.get("tracker"):
        case "tensorboard":
            return {f"tensorboard --logdir {os.path.dirname(folder.shown)}": "its curves beside the others'"}
        case "trackio":
            return {f"trackio show --project {shlex.quote(project)}": "its curves beside the others'"}
        case "mlflow":
            store = shlex.quote(store_uri(folder))
            return {f"mlflow ui --backend-store-uri {store}": "its curves beside the others'"}
    return {}
