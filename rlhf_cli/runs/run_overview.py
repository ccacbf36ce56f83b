"""Look over runs: their state and speed, those of a folder in groups, and links that lead out of a run."""

from __future__ import annotations

import contextlib
import os
import shlex
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rlhf_cli.errors import RunError
from rlhf_cli.runs.run_folder import SWEEP, RunFolder, read_json, runs_below
from rlhf_cli.runs.run_status import RunState
from rlhf_cli.text.regular_files import parse_json

_TAIL_BYTES = 1 << 16
_EVENTS = 20
"""Number of recent log events used for the pace: a run whose completions grow is now slower than its average."""


@dataclass(frozen=True)
class RunRow:
    """One row of `rlhf status`. Times are in seconds; unknown values are None."""

    run: str
    state: RunState
    step: int = 0
    max_steps: int | None = None
    s_per_step: float | None = None
    time_left_s: float | None = None
    log_age_s: float | None = None
    last_checkpoint: str | None = None
    job_id: str | None = None
    slurm_state: str | None = None
    reason: str | None = None


@dataclass(frozen=True)
class Overview:
    """All rows, and `notice`: why Slurm could not be queried, or None."""

    rows: list[RunRow]
    notice: str | None


def pace(folder: RunFolder) -> tuple[float | None, float | None]:
    """Return seconds per step and seconds since the last log event; None if too few are logged. May raise OSError."""
    if not folder.metrics.is_file():
        return None, None
    points = _last_points(folder)[-_EVENTS:]
    steps = points[-1][0] - points[0][0] if points else 0
    s_per_step = (points[-1][1] - points[0][1]) / steps if steps > 0 else None
    return s_per_step, max(0.0, time.time() - folder.metrics.stat().st_mtime)


def _last_points(folder: RunFolder) -> list[tuple[int, float]]:
    with folder.metrics.open("rb") as stream:
        stream.seek(max(0, folder.metrics.stat().st_size - _TAIL_BYTES))
        lines = stream.read().decode("utf-8", errors="replace").splitlines()
    points = []
    for line in lines:
        with contextlib.suppress(ValueError):  # a line that is cut off or damaged
            event = parse_json(line)
            if isinstance(event, dict) and "train_runtime" not in event:  # that is in the final summary
                step, time_s = event.get("step"), event.get("time_s")
                if isinstance(step, int) and isinstance(time_s, int | float):
                    points.append((step, float(time_s)))
    return points


_MOST_TOGETHER = 12
"""A folder with more runs than this is shown one group at a time: too many keys would differ for one table."""


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
    if not path.is_dir() or (path / SWEEP).is_file():
        return []
    by_parent: dict[Path, list[RunFolder]] = {}
    for folder in runs_below(path):
        by_parent.setdefault(folder.path.parent, []).append(folder)
    if sum(map(len, by_parent.values())) <= _MOST_TOGETHER:
        return []

    def age(folder: RunFolder) -> float:
        return -folder.config.stat().st_mtime

    groups = [
        RunGroup(parent, tuple(sorted(folders, key=age)), (parent / SWEEP).is_file(), swept_in(parent))
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
        swept = read_json(folder / SWEEP).get("swept")
    except RunError:
        return ()
    return tuple(str(key) for key in swept) if isinstance(swept, list) else ()


def words_in(sweep: Mapping[str, object]) -> list[str]:
    """Return the overrides from which the jobs in a sweep.json are made, each once."""
    jobs = sweep.get("jobs")
    jobs = jobs if isinstance(jobs, list) else []
    lists = [sweep.get("overrides"), *(one.get("overrides") for one in jobs if isinstance(one, dict))]
    return list(dict.fromkeys(str(word) for words in lists if isinstance(words, list) for word in words))


_MOST_LINKS = 5


def refuse_links(folder: Path) -> None:
    """Raise RunError for a link out of the folder, through which a file would be overwritten, and for a FIFO."""
    inside = folder.resolve()
    links = (Path(root, name) for root, below, files in os.walk(folder) for name in (*below, *files))
    found = [
        link
        for link in links
        if (link.is_symlink() and not link.resolve().is_relative_to(inside) and not _is_a_log_of_wandb(folder, link))
        or (link.exists() and not link.is_file() and not link.is_dir())
    ]
    if found:
        shown = [f"{link.relative_to(folder)}{f' -> {link.readlink()}' if link.is_symlink() else ''}" for link in found]
        link, target = shlex.quote(str(found[0])), shlex.quote(str(found[0].resolve()))
        raise RunError(
            "the run folder holds links to the outside, or pipes: what they name would be read or overwritten",
            where=str(folder),
            got="\n".join(shown[:_MOST_LINKS]),
            expected="only files and folders",
            hint=f"rm {link} && cp -r {target} {link}",
        )


def _is_a_log_of_wandb(folder: Path, link: Path) -> bool:
    """Return whether a link is a log in a run of wandb's: wandb links to its cache, and a resumed run has new ones."""
    parts = link.relative_to(folder).parts
    return len(parts) == 4 and (parts[0], parts[2]) == ("wandb", "logs")
