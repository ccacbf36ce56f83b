"""Find the runs below a folder at any depth: experiments, sweeps and their jobs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rlhf_cli.errors import RunError
from rlhf_cli.runs.run_folder import RunFolder, open_run, read_json

_DEEPEST = 4
_SWEEP = "sweep.json"
_MOST_TOGETHER = 12
"""A folder with more runs than this is shown one group at a time: too many keys would differ for one table."""


def runs_in(root: Path) -> list[RunFolder]:
    """Return the run at a folder, or the sorted runs below it. Raises RunError if there are none."""
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
    """Return the run at a folder, or the runs below it; [] if the folder does not exist."""
    return [RunFolder(path.resolve()) for path in _run_folders(root, _DEEPEST)]


@dataclass(frozen=True)
class RunGroup:
    """Runs in one folder: those of a sweep, or single runs, newest first. `swept` are a sweep's keys."""

    path: Path
    folders: tuple[RunFolder, ...]
    is_sweep: bool
    swept: tuple[str, ...]


def groups_of(word: str) -> list[RunGroup]:
    """Return the groups below a folder, newest first; [] for a sweep, a run, or few enough runs for one table."""
    path = Path(word).expanduser()
    if not path.is_dir() or (path / _SWEEP).is_file():
        return []
    by_parent: dict[Path, list[RunFolder]] = {}
    for folder in runs_below(path):
        by_parent.setdefault(folder.path.parent, []).append(folder)
    if sum(map(len, by_parent.values())) <= _MOST_TOGETHER:
        return []

    def age(folder: RunFolder) -> float:
        return -folder.config.stat().st_mtime

    groups = [
        RunGroup(parent, tuple(sorted(folders, key=age)), (parent / _SWEEP).is_file(), swept_in(parent))
        for parent, folders in by_parent.items()
    ]
    return sorted(groups, key=lambda group: age(group.folders[0]))


def newest_of(group: RunGroup) -> list[str]:
    """Return the paths of a group's newest runs: a sweep as one path, single runs up to a limit."""
    if group.is_sweep:
        return [str(group.path)]
    return [str(folder.path) for folder in group.folders[:_MOST_TOGETHER]]


def swept_in(folder: Path) -> tuple[str, ...]:
    """Return the keys varied by the sweep in a folder; () if its sweep.json cannot be read."""
    try:
        swept = read_json(folder / _SWEEP).get("swept")
    except RunError:
        return ()
    return tuple(str(key) for key in swept) if isinstance(swept, list) else ()


def _run_folders(folder: Path, depth: int) -> Iterator[Path]:
    if (folder / "config.yaml").is_file():
        yield folder
    elif depth and folder.is_dir():
        for inside in sorted(entry for entry in folder.iterdir() if entry.is_dir()):
            yield from _run_folders(inside, depth - 1)
