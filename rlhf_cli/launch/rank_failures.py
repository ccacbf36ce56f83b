"""Why a rank failed: the record that it writes, and how to go on."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from rlhf_cli.errors import EXIT_CRASH
from rlhf_cli.runs.heartbeat import heartbeat_files
from rlhf_cli.runs.run_folder import RunFolder


@dataclass(frozen=True)
class RankFailure:
    """Why one rank failed or, with exit code 75, that it left after a request to stop.

    `time` is in seconds since the epoch. `traceback` is empty if there is none. `host` is None if all ranks are on one
    machine.
    """

    rank: int
    time: float
    message: str
    traceback: str = ""
    exit_code: int = EXIT_CRASH
    is_by_guard: bool = False
    host: str | None = None


def failure_file(folder: RunFolder, rank: int | str) -> Path:
    """Return the file in which a rank records why it failed; rank `*` gives the pattern for all."""
    return folder.path / f"failure-rank{rank}.json"


def forget_failures(folder: RunFolder) -> None:
    """Remove the failure and heartbeat files of earlier starts."""
    failures = folder.path.glob(failure_file(folder, "*").name)
    for stale in (*failures, *heartbeat_files(folder.path)):
        stale.unlink()


def resume_hint(folder: RunFolder) -> str:
    """Return what remains of a failed run: its last checkpoint and the resume command."""
    checkpoint = folder.last_checkpoint()
    if checkpoint is None:
        return "no checkpoint was saved"
    return f"last good checkpoint: {checkpoint.name}; `rlhf resume {os.path.relpath(folder.path)}`"
