"""Keep a mirror open around a training run, or put a sweep's report beside its runs."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rlhf_cli.errors import Preempted
from rlhf_cli.runs.run_folder import RunFolder, runs_below
from rlhf_cli.runs.tracking.mirror import Mirror, Say, Timings
from rlhf_cli.runs.tracking.tracker import Ending, TrackedRun, Tracker
from rlhf_cli.runs.tracking.tracking_plan import TrackingPlan, plan_tracking, tracked_run
from rlhf_cli.runs.tracking.wandb_tracker import open_run
from rlhf_cli.text.json_values import section
from rlhf_cli.text.redaction import redacted

if TYPE_CHECKING:
    import wandb


def mirror_of(folder: RunFolder, plan: TrackingPlan, *, say: Say, unique_prompts: bool = False) -> Mirror:
    """Return the mirror of a plan, not yet started; with mode none it does nothing."""
    tracker = None if plan.mode == "none" else _tracker(plan)
    return Mirror(plan.tracker, tracker, folder, say=say, unique_prompts=unique_prompts)


@contextlib.contextmanager
def tracked(
    mirror: Mirror, folder: RunFolder, *, timings: Timings = dict, goes_on_from: int = 0, recorded_to: int = 0
) -> Iterator[None]:
    """Keep a mirror open during a training run and tell it how the run ended.

    `goes_on_from` is the checkpoint's step at which training starts, `recorded_to` the last step that an earlier
    attempt logged.
    """
    if not mirror.mirrors:
        yield
        return
    mirror.start(tracked_run(folder, goes_on_from=goes_on_from, recorded_to=recorded_to), timings)
    ending: Ending = "failed"
    try:
        yield
        ending = "finished"
    except (Preempted, KeyboardInterrupt):
        ending = "preempted"
        raise
    finally:
        mirror.finish(ending)


def _tracker(plan: TrackingPlan) -> Tracker:
    """Return the tracker of a plan; it imports its package when it starts."""
    if plan.tracker == "tensorboard":
        from rlhf_cli.runs.tracking.tensorboard_tracker import TensorBoardTracker

        return TensorBoardTracker()
    if plan.tracker == "trackio":
        from rlhf_cli.runs.tracking.trackio_tracker import TrackioTracker

        return TrackioTracker()
    if plan.tracker == "mlflow":
        from rlhf_cli.runs.tracking.mlflow_tracker import MlflowTracker

        return MlflowTracker()
    from rlhf_cli.runs.tracking.wandb_tracker import WandbTracker

    return WandbTracker("online" if plan.mode == "online" else "offline")


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
