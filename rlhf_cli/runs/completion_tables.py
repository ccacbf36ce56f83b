"""Keeps the tables of completions of a run from growing with its length: the first, the newest, one of every so many
steps.

A table a log event is the largest thing that a long run leaves: 11 kB for eight short answers, megabytes for a round of
512 long ones. Until it is uploaded wandb keeps two more copies of each, in the folder of its run and where it gets
artifacts ready.
"""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

_OURS = re.compile(r"^completions_(\d+)\.parquet$")
_WANDBS = (
    "wandb/*run-*/files/media/table/completions_[0-9]*.table.json",
    "wandb/*run-*/files/media/table/evaluation_[0-9]*.table.json",
    "wandb/*run-*/files/media/table/evaluation_answers_*.table.json",
    "wandb/artifacts/staging/*",
)


def table_file(run: Path, step: int) -> Path:
    """Return the file of the table of completions of a step, whether or not there is one."""
    return run / "completions" / f"completions_{step:05d}.parquet"


def tables_by_step(run: Path) -> list[tuple[int, Path]]:
    """Return (step, file) of every table of completions in a run folder, by step."""
    return sorted(
        (int(match[1]), file) for file in run.glob("completions/*.parquet") if (match := _OURS.match(file.name))
    )


def prune_completions(run: Path, *, last: int, every: int | None) -> None:
    """Remove from a run folder all tables of completions but the first, the `last` newest and one of so many steps.

    The first of training stays whatever else goes: its answers are those of the policy that every run of the same seed
    begins with, and say what other weights would have made of them (`rlhf whatif`). A table that is gone already is
    nobody's loss: whoever looks at a run's completions takes what is there. What wandb has of them is cut down to the
    `last` newest; a file of its own knows no optimizer step.
    """
    tables = tables_by_step(run)
    first = next((step for step, _ in tables if step > 0), 0)  # step 0 is an evaluation's, before training
    for step, file in tables[:-last]:
        if step != first and (every is None or step % every != 0):
            file.unlink(missing_ok=True)
    for pattern in _WANDBS:
        for file in _by_age(run, pattern)[:-last]:
            file.unlink(missing_ok=True)


def _by_age(run: Path, pattern: str) -> list[Path]:
    """Return the files of a pattern, the oldest first; wandb may move one away at any moment."""
    ages: list[tuple[int, Path]] = []
    for file in run.glob(pattern):
        with contextlib.suppress(FileNotFoundError):
            ages.append((file.stat().st_mtime_ns, file))
    return [file for _, file in sorted(ages)]
