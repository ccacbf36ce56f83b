"""Know what lies in a sweep's folder, and how a sweep runs."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rlhf_cli.errors import ConfigError, RunError
from rlhf_cli.jobs.usage import Options
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


OF_SWEEPS = ("-j", "--watch", "-v", "--failed")
"""Flags that do not apply to a single run."""


@dataclass(frozen=True)
class SweepOptions:
    """How a sweep runs.

    `at_once` is the number of concurrent jobs. `watch` is the metric in the table (None: the reward, else the loss).
    `verbose` shows every run's panels; `dry_run` starts nothing; `only_failed` resumes failed jobs only.
    """

    at_once: int = 1
    watch: str | None = None
    verbose: bool = False
    dry_run: bool = False
    only_failed: bool = False


def sweep_options(options: Options) -> SweepOptions:
    """Return the sweep options from the command line. Raise ConfigError if -j is not a number of at least 1."""
    return SweepOptions(
        at_once=options.number("-j") or 1,
        watch=options.text("--watch"),
        verbose=options.on("-v"),
        dry_run=options.on("--dry-run"),
        only_failed="--failed" in options.usage.flags and options.on("--failed"),
    )


def refuse_of_sweeps(options: Options, hint: str) -> None:
    """Raise ConfigError if a sweep option was typed for a single run; `hint` is what to type for a sweep."""
    typed = [name for name in OF_SWEEPS if name in options.usage.flags and options.on(name)]
    if typed:
        raise ConfigError(
            f"{typed[0]} is an option of sweeps, and this is one run",
            where="command line",
            got=" ".join(typed),
            hint=hint,
        )
