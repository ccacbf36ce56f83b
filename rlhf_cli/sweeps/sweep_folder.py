"""Write and read the folder of a sweep: sweep.json and a frozen run for every job."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rlhf_cli.launch.freeze import create_run
from rlhf_cli.runs.run_folder import RunFolder, read_json, unreadable, write_json
from rlhf_cli.sweeps.checked_jobs import CheckedJob
from rlhf_cli.sweeps.sweep_grid import SweepJob
from rlhf_cli.sweeps.sweep_options import SWEEP_FILE


@dataclass(frozen=True)
class SweepFolder:
    """A sweep on disk, as read from its sweep.json."""

    path: Path
    jobs: tuple[SweepJob, ...]

    def run_of(self, job: SweepJob) -> RunFolder:
        """Return the run folder of a job."""
        return RunFolder(self.path / job.name)


def begin_sweep(folder: Path, typed: list[str], swept: Sequence[str], jobs: Sequence[SweepJob]) -> None:
    """Create the folder and write sweep.json into it. Checking the jobs has found that `run.root` can be written to."""
    folder.mkdir(parents=True)
    content = {
        "command": shlex.join(["rlhf", *sys.argv[1:]]),
        "overrides": typed,
        "created_at": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "swept": list(swept),
        "jobs": [_entry(job) for job in jobs],
    }
    write_json(folder / SWEEP_FILE, content, durable=True)


def add_job(folder: Path, job: SweepJob) -> None:
    """Add a trial's job to sweep.json. Trials are not known when the search starts."""
    content = read_json(folder / SWEEP_FILE)
    listed = content.get("jobs")
    jobs = [*(listed if isinstance(listed, list) else []), _entry(job)]
    write_json(folder / SWEEP_FILE, {**content, "jobs": jobs}, durable=True)


def _entry(job: SweepJob) -> dict[str, object]:
    return {"name": job.name, "values": dict(job.values), "overrides": list(job.words)}


def freeze(folder: Path, job: CheckedJob) -> RunFolder:
    """Freeze one job into the sweep's folder. Raise RunError if that is not writable."""
    prepared = job.prepared
    return create_run(prepared.experiment, prepared.composed, files=job.plan.files, at=folder / job.job.name)


def typed_words(folder: Path) -> list[str]:
    """Return the overrides that a sweep was typed with, without flags. Raise RunError for an unreadable file."""
    typed = read_json(folder / SWEEP_FILE).get("overrides")
    return [*map(str, typed)] if isinstance(typed, list) else []


def open_sweep(folder: Path) -> SweepFolder:
    """Return the sweep in a folder. Raise RunError if its sweep.json cannot be read."""
    listed = read_json(folder / SWEEP_FILE).get("jobs")
    jobs = []
    for entry in listed if isinstance(listed, list) else []:
        try:
            jobs.append(SweepJob(str(entry["name"]), dict(entry["values"]), tuple(map(str, entry["overrides"]))))  # type: ignore[index, call-overload, arg-type]
        except (KeyError, TypeError, ValueError) as error:
            raise unreadable(folder / SWEEP_FILE, f"a job without {error}") from None
    return SweepFolder(folder.resolve(), tuple(jobs))
