"""Read and write a sweep's folder: sweep.json with the request, and one frozen run per job."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rlhf_cli.errors import RunError
from rlhf_cli.launch.freeze import create_run
from rlhf_cli.runs.run_folder import RunFolder, read_json, unreadable, write_json
from rlhf_cli.sweeps.checked_jobs import CheckedJob
from rlhf_cli.sweeps.sweep_grid import Grid, Job

SWEEP_FILE = "sweep.json"


@dataclass(frozen=True)
class SweepFolder:
    """A sweep on disk, as read from its sweep.json. A sweep of an older version may list no jobs there."""

    path: Path
    jobs: tuple[Job, ...]

    def run_of(self, job: Job) -> RunFolder:
        """Return the run folder of a job."""
        return RunFolder(self.path / job.name)


def write_sweep(
    folder: Path,
    typed: list[str],
    grid: Grid,
    jobs: Sequence[CheckedJob],
    progress: Callable[[int], object] = lambda done: None,
) -> SweepFolder:
    """Create the folder, write sweep.json and freeze every job as a run in state `created`.

    Raise RunError if the folder cannot be created.
    """
    begin_sweep(folder, typed, [axis.key for axis in grid.axes], grid.jobs)
    for done, job in enumerate(jobs, start=1):
        freeze(folder, job)
        progress(done)
    return SweepFolder(folder, grid.jobs)


def begin_sweep(folder: Path, typed: list[str], swept: Sequence[str], jobs: Sequence[Job]) -> None:
    """Create the folder and write sweep.json into it. Raise RunError if the folder cannot be created."""
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise RunError(
            "the folder of the sweep cannot be made",
            where=str(folder),
            got=error.strerror,
            expected="a folder that can be written to",
            hint="run.root=SOMEWHERE_ELSE",
        ) from error
    write_json(
        folder / SWEEP_FILE,
        {
            "command": shlex.join(["rlhf", *sys.argv[1:]]),
            "overrides": typed,
            "created_at": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "swept": list(swept),
            "jobs": [_entry(job) for job in jobs],
        },
        durable=True,
    )


def add_job(folder: Path, job: Job) -> None:
    """Add a trial's job to sweep.json. Trials are not known when the search starts."""
    content = read_json(folder / SWEEP_FILE)
    listed = content.get("jobs")
    jobs = [*(listed if isinstance(listed, list) else []), _entry(job)]
    write_json(folder / SWEEP_FILE, {**content, "jobs": jobs}, durable=True)


def _entry(job: Job) -> dict[str, object]:
    return {"name": job.name, "values": dict(job.values), "overrides": list(job.words)}


def freeze(folder: Path, job: CheckedJob) -> RunFolder:
    """Freeze one job into the sweep's folder. Raise RunError if that is not writable."""
    prepared = job.prepared
    return create_run(prepared.experiment, prepared.composed, files=job.plan.files, sweep_dir=folder, job=job.job.name)


def is_sweep(folder: Path) -> bool:
    """Return whether a folder is a sweep's."""
    return (folder / SWEEP_FILE).is_file()


def typed_words(folder: Path) -> list[str]:
    """Return the overrides that a sweep was typed with, without flags. Raise RunError for an unreadable file."""
    typed = read_json(folder / SWEEP_FILE).get("overrides")
    return [*map(str, typed)] if isinstance(typed, list) else []


def open_sweep(folder: Path) -> SweepFolder:
    """Return the sweep in a folder. Raise RunError if its sweep.json cannot be read."""
    content = read_json(folder / SWEEP_FILE)
    listed = content.get("jobs")
    try:
        jobs = [_job(entry) for entry in listed] if isinstance(listed, list) else []
    except (KeyError, TypeError, AttributeError) as error:
        raise unreadable(folder / SWEEP_FILE, f"a job without {error}") from None
    if not jobs:  # an older version, whose jobs are named 0, 1, 2
        found = sorted((path.parent.name for path in folder.glob("*/config.yaml")), key=lambda name: (len(name), name))
        jobs = [Job(name, {}, ()) for name in found]
    return SweepFolder(folder.resolve(), tuple(jobs))


def _job(entry: object) -> Job:
    if not isinstance(entry, dict):
        raise TypeError("a name")
    words = entry.get("overrides")
    return Job(str(entry["name"]), dict(entry["values"]), tuple(map(str, words if isinstance(words, list) else ())))
