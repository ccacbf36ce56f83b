"""Log a sweep's report to wandb beside its runs, as a small run of job type `report` in their group."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rlhf_cli.json_values import section
from rlhf_cli.redaction import redacted
from rlhf_cli.runs.found_runs import runs_below
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.tracking.mirror import Say
from rlhf_cli.tracking.tracked_run import tracked_run
from rlhf_cli.tracking.tracker import TrackedRun
from rlhf_cli.tracking.tracking_plan import plan_tracking
from rlhf_cli.tracking.wandb_tracker import open_run

if TYPE_CHECKING:
    import wandb

JOB_TYPE = "report"
_PICTURES = (".png", ".jpg", ".jpeg")
_PAGES = (".html",)


def log_report(sweep_folder: Path, files: Sequence[Path], *, say: Say = print) -> bool:
    """Log pages and pictures to the group of a sweep; return whether it succeeded.

    Does nothing if the sweep's runs are not tracked by wandb. Logging again adds a step to the same run. Errors from
    wandb are printed as warnings.
    """
    jobs = runs_below(sweep_folder)
    track = section(jobs[0].read_config(), "track") if jobs else {}
    mode = track.get("mode", "none")
    shown = [file for file in files if file.suffix in (*_PICTURES, *_PAGES) and file.is_file()]
    if track.get("tracker", "wandb") != "wandb" or mode == "none" or not shown:
        return False
    try:
        plan = plan_tracking("online" if mode == "online" else "offline")
        _log(_of_sweep(sweep_folder, jobs[0]), shown, online=plan.mode == "online")
    except Exception as error:
        logging.getLogger("rlhf").exception("the report was not logged")
        what = redacted(f"{type(error).__name__}: {error}".partition("\n")[0])
        say(f"warning: wandb did not take the report ({what}); it lies in {os.path.relpath(sweep_folder)}")
        return False
    return True


def _of_sweep(sweep_folder: Path, job: RunFolder) -> TrackedRun:
    """Return the run for the report: in the first job's project and group, with its own id."""
    of_job = tracked_run(job)
    return TrackedRun(
        path=sweep_folder,
        run_id=hashlib.sha256(f"{of_job.run_id} {JOB_TYPE}".encode()).hexdigest()[:10],
        name=JOB_TYPE,
        label=f"{of_job.group}/{JOB_TYPE}",
        group=of_job.group,
        job_type=JOB_TYPE,
        project=of_job.project,
        entity=of_job.entity,
        tags=of_job.tags,
        notes=None,
        config={},
    )


def _log(run: TrackedRun, files: Sequence[Path], *, online: bool) -> None:
    before = os.environ.get("WANDB_DATA_DIR")
    os.environ["WANDB_DATA_DIR"] = str(run.path / "wandb")
    try:
        opened = open_run(run, "online" if online else "offline")
        opened.log({file.name.replace(".", "_"): _media(file) for file in files})
        opened.finish()
    finally:
        if before is None:
            del os.environ["WANDB_DATA_DIR"]
        else:
            os.environ["WANDB_DATA_DIR"] = before


def _media(file: Path) -> wandb.Html | wandb.Image:
    import wandb

    return wandb.Html(str(file), inject=False) if file.suffix in _PAGES else wandb.Image(str(file), caption=file.stem)
