"""Checks that the run's folder is writable and has enough free space."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from rlhf_cli.config.compose import Composed
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.errors import Prose, RunError, UserError
from rlhf_cli.plan.checkpoint_space import space_problems
from rlhf_cli.plan.checks.known import Known
from rlhf_cli.plan.run_plan import Notice


def unwritable_problems(experiment: Experiment, composed: Composed, known: Known) -> Iterator[UserError]:
    """Yield an error if the run's folder cannot be made or written to."""
    run = known.folder
    folder = run or Path(experiment.run.root).expanduser().resolve()
    while not folder.exists():
        folder = folder.parent
    if folder.is_dir() and os.access(folder, os.W_OK | os.X_OK):
        return
    yield RunError(
        "the run folder cannot be made" if run is None else "the run folder cannot be written to",
        where="run.root" if run is None else str(folder),
        got=f"{folder} is {'not writable' if folder.is_dir() else 'a file'}",
        expected="a folder that can be written to",
        hint="run.root=SOMEWHERE_ELSE" if run is None else Prose(f"cp -r {folder} SOMEWHERE_ELSE, and resume that"),
    )


def room_problems(experiment: Experiment, composed: Composed, known: Known) -> Iterator[UserError]:
    """Yield an error if not even one checkpoint fits on the disk, or note that not all of them will fit."""
    problems, notice = space_problems(experiment, known.steps, known.folder)
    yield from problems
    if notice is not None:
        known.notices.append(Notice("disk", notice))
