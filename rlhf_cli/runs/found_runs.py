"""Finds the runs below a folder, however deep: experiments, sweeps and their jobs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from rlhf_cli.errors import RunError
from rlhf_cli.runs.run_folder import RunFolder, open_run

_DEEPEST = 4


def runs_in(root: Path) -> list[RunFolder]:
    """Return the run that a folder is, or those that lie below it, by name. Raises RunError for a path without any."""
    if found := runs_below(root):
        return found
    if not root.is_dir():
        return [open_run(root)]
    raise RunError(
        f"no run lies below {root}",
        expected="a run, a sweep, or a folder of them",
        hint=f"ls {os.path.relpath(root)}",
    )


def runs_below(root: Path) -> list[RunFolder]:
    """Return the run that a folder is, or those that lie below it; none where there is no such folder."""
    return [RunFolder(path.resolve()) for path in _run_folders(root, _DEEPEST)]


def _run_folders(folder: Path, depth: int) -> Iterator[Path]:
    if (folder / "config.yaml").is_file():
        yield folder
    elif depth and folder.is_dir():
        for inside in sorted(entry for entry in folder.iterdir() if entry.is_dir()):
            yield from _run_folders(inside, depth - 1)
