"""Runs the frozen jobs of a sweep."""

from __future__ import annotations

import traceback
from collections.abc import Sequence

from rich.console import Console

from rlhf_cli.errors import EXIT_CRASH, EXIT_OK, EXIT_USER_ERROR, Preempted, RlhfError, UserError
from rlhf_cli.jobs.one_run import go_on
from rlhf_cli.redaction import redacted
from rlhf_cli.runs.writer_lock import only_writer
from rlhf_cli.screen.start_panel import show_start
from rlhf_cli.sweeps.checked_jobs import CheckedJob
from rlhf_cli.sweeps.sweep_folder import SweepFolder
from rlhf_cli.sweeps.sweep_options import SweepOptions


def run_jobs(console: Console, sweep: SweepFolder, jobs: Sequence[CheckedJob], options: SweepOptions) -> int:
    """Run the jobs and return the exit code of the sweep. Raises Preempted where it was stopped."""
    codes = [_run_job(console, sweep, job) for job in jobs]
    return EXIT_CRASH if EXIT_CRASH in codes else max(codes, default=EXIT_OK)


def _run_job(console: Console, sweep: SweepFolder, job: CheckedJob) -> int:
    folder = sweep.run_of(job.job)
    try:
        with only_writer(folder):
            show_start(console, job.prepared.experiment, job.plan, title=job.job.name, folder=folder.shown)
            go_on(console, folder, resume=False)
    except Preempted:
        raise
    except UserError as error:
        console.print(redacted(f"{job.job.name}: {error}"), style="red", markup=False, highlight=False)
        return EXIT_USER_ERROR
    except Exception as error:  # one job's crash must not cost the others their night
        console.print(f"{job.job.name} crashed", style="red", markup=False)
        console.print(redacted(str(error) if isinstance(error, RlhfError) else traceback.format_exc()), markup=False)
        return EXIT_CRASH
    return EXIT_OK
