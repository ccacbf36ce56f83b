"""The last step of a record, held against wandb's own reader, and of one that was cut anywhere."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from rlhf_cli.runs.tracking.wandb_records import last_step
from tests.support.logged_run import logged_run
from tests.support.mirrored import Mirrored
from tests.support.wandb_read_back import read_back

_HEADER = b":W&B" + struct.pack("<HB", 0xBEE1, 0)
_BLOCK = 32 * 1024


def _row(step: int, padding: int) -> bytes:
    """A row as wandb's protocol has it, as many bytes longer as `padding` says."""
    from wandb.proto import wandb_internal_pb2 as protocol

    record = protocol.Record()
    record.history.item.add(key="train/global_step", value_json=str(step))
    record.history.item.add(key="text", value_json='"' + "x" * padding + '"')
    content: bytes = record.SerializeToString()
    return content


def _log(rows: list[bytes]) -> bytes:
    """Write a log as LevelDB's document says; a checksum is not read."""
    log = _HEADER
    for row in rows:
        kind_of_first = True
        while row or kind_of_first:
            left = _BLOCK - len(log) % _BLOCK
            if left < 7:
                log += b"\0" * left
                continue
            part, row = row[: left - 7], row[left - 7 :]
            kind = {(True, True): 1, (True, False): 2, (False, False): 3, (False, True): 4}[kind_of_first, not row]
            log += b"\0\0\0\0" + struct.pack("<HB", len(part), kind) + part
            kind_of_first = False
    return log


def test_as_wandb_reads_it(place: Path, mirrored: Mirrored) -> None:
    folder = logged_run(place / "runs" / "quickstart" / "one")
    mirrored(folder, "wandb")
    (file,) = folder.path.glob("wandb/offline-run-*/run-*.wandb")
    assert last_step(file) == max(read_back(file).steps) == 4


@pytest.mark.parametrize("padding", [10, 32_640, 32_700, 32_720, 100_000])
def test_rows_over_the_ends_of_blocks_and_a_cut_end(padding: int, tmp_path: Path) -> None:
    """32,7xx bytes leave too little of a block for a chunk, 100,000 are in four of them."""
    file = tmp_path / "run.wandb"
    rows = [_row(step, padding) for step in (1, 2, 3)]
    whole = _log(rows)
    file.write_bytes(whole)
    assert last_step(file) == 3
    file.write_bytes(whole[:-1])
    assert last_step(file) == 2
    file.write_bytes(_log(rows[:1])[:-1])
    assert last_step(file) is None
    file.write_bytes(whole + b"\0" * 5000)  # as a power cut leaves it
    assert last_step(file) == 3


def test_what_holds_no_step(tmp_path: Path) -> None:
    file = tmp_path / "run.wandb"
    for content in (b"", b":W", _HEADER, b"\xff" * 100):
        file.write_bytes(content)
        assert last_step(file) is None
