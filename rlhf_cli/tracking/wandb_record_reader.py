"""Read the last step in a wandb record; the newest rows are missing if the process was killed.

A record is a LevelDB log (github.com/google/leveldb, doc/log_format.md) after a header of seven bytes. It has blocks of
32 KiB, with chunks of checksum (4 bytes), length (2), type (1) and that many bytes of data. The chunks of one record
together are a message of wandb's protocol.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from rlhf_cli.tracking.tracker import STEP

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
