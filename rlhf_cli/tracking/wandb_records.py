"""Find wandb's records in a folder, and which of them were sent, without importing wandb."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

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
