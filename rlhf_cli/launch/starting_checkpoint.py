"""Find the checkpoint to resume from, the same on every rank, and report skipped ones."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from rlhf_cli.errors import Prose, RunError
from rlhf_cli.runs.checkpoint_folders import MANIFEST, finish_commit, newest_whole
from rlhf_cli.runs.run_folder import RunFolder


def starting_checkpoint(folder: RunFolder, *, is_main: bool) -> Path | None:
    """Return the newest checkpoint that verifies, the same on every rank; None if there are no checkpoints.

    Newer ones that do not verify are printed. Raises RunError if there are checkpoints and none verifies, because
    starting again would overwrite the run's files.
    """
    from accelerate.utils import broadcast_object_list

    shared: list[Any] = [None, []]
    if is_main:  # avoids that every rank reads all bytes
        finish_commit(folder.checkpoints)
        shared = list(newest_whole(folder.checkpoints))
    broadcast_object_list(shared)
    checkpoint: Path | None = shared[0]
    skipped: list[str] = shared[1]
    if checkpoint is None and skipped:
        raise RunError(
            "no checkpoint of this run is whole",
            where=str(folder.checkpoints),
            got="\n".join(skipped),
            expected=f"one whose files are as its {MANIFEST} says",
            hint=Prose("move these away, and the run starts at step 0"),
        )
    if is_main:
        for line in skipped:
            logging.getLogger("rlhf").warning("skipped %s", line)
            print(f"warning: skipped {line}")
        print(f"going on from {checkpoint.name}" if checkpoint else "there is no checkpoint yet: starting at step 0")
    return checkpoint
