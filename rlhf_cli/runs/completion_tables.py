"""Prune a run's completion tables, so that their size does not grow with the length of the run.

The table of each log event is the largest output of a long run: 11 kB for eight short answers, megabytes for 512 long
ones. Until the upload, wandb keeps two more copies of each, in its run folder and in its artifact staging folder.
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
    """Return the path of the completion table of a step. It need not exist."""
    return run / "completions" / f"completions_{step:05d}.parquet"


def tables_by_step(run: Path) -> list[tuple[int, Path]]:
    """Return (step, file) of every completion table in a run folder, sorted by step."""
    return sorted(
        (int(match[1]), file) for file in run.glob("completions/*.parquet") if (match := _OURS.match(file.name))
    )


def prune_completions(run: Path, *, last: int, every: int | None) -> None:
    """Delete a run's completion tables except the first, the `last` newest and those of every `every`-th step.

    The first table of training always stays: its answers come from the initial policy, which all runs with the same
    seed share, so `rlhf whatif` can rescore them with other weights. Readers of the tables handle missing ones. Of
    wandb's copies only the `last` newest stay, because their file names do not give the optimizer step.
    """
    tables = tables_by_step(run)
    first = next((step for step, _ in tables if step > 0), 0)  # step 0 is an evaluation before training
    for step, file in tables[:-last]:
        if step != first and (every is None or step % every != 0):
            file.unlink(missing_ok=True)
    for pattern in _WANDBS:
        for file in _by_age(run, pattern)[:-last]:
            file.unlink(missing_ok=True)


def _by_age(run: Path, pattern: str) -> list[Path]:
    """Return the files that match a pattern, oldest first; wandb may move a file away at any moment."""
    ages: list[tuple[int, Path]] = []
    for file in run.glob(pattern):
        with contextlib.suppress(FileNotFoundError):
            ages.append((file.stat().st_mtime_ns, file))
    return [file for _, file in sorted(ages)]
