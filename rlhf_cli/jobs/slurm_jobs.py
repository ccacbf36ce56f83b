"""Hand checked experiments to Slurm: freeze them, submit them, print where to look, and return."""

from __future__ import annotations

import os
from pathlib import Path

from rich.console import Console

from rlhf_cli.config.schema.launch_section import Launch
from rlhf_cli.jobs.prepare import Prepared
from rlhf_cli.json_values import section
from rlhf_cli.launch.freeze import create_run, experiment_name
from rlhf_cli.plan.run_plan import Plan
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.run_status import own_job_id, read_status
from rlhf_cli.screen.start_panel import show_start
from rlhf_cli.slurm.slurm_submission import log_file, submit


def goes_to_slurm(launch: Launch) -> bool:
    """Return whether runs with this section are submitted rather than trained on this machine."""
    return launch.slurm is not None


def is_for_slurm(folder: RunFolder) -> bool:
    """Return whether a resumed run is submitted: it is configured for Slurm, and this is not its own job."""
    is_own_job = (job_id := own_job_id()) is not None and read_status(folder).job_id == job_id
    return not is_own_job and section(folder.read_config(), "launch").get("slurm") is not None


def submit_once(console: Console, prepared: Prepared, plan: Plan, *, earlier: RunFolder | None = None) -> RunFolder:
    """Submit a checked experiment, newly frozen or as the run `earlier`, and return its folder.

    Raises RunError if the folder cannot be created and ConfigError if Slurm refuses the job.
    """
    folder = earlier or create_run(prepared.experiment, prepared.composed, files=plan.files)
    show_start(console, prepared.experiment, plan, title=experiment_name(prepared.composed), folder=folder.shown)
    submit_frozen(console, folder)
    return folder


def submit_frozen(console: Console, folder: RunFolder) -> None:
    """Submit a frozen run and print where to look. Raises ConfigError if Slurm refuses the job."""
    launch = Launch.model_validate(folder.read_config()["launch"])
    (job_id,) = submit([folder], launch, folder=folder.path, name=f"rlhf:{folder.label}")
    _say(console, f"job {job_id}", log_file(job_id, folder.path), folder.path, [job_id])
    console.print(f"run folder: {folder.shown}", soft_wrap=True, highlight=False)


def submit_sweep(console: Console, runs: list[RunFolder], sweep_dir: Path) -> None:
    """Submit the frozen runs of a sweep as one array, or one array per value of `launch` if that is swept.

    Raises ConfigError if Slurm refuses an array.
    """
    arrays: dict[str, list[RunFolder]] = {}
    for run in runs:
        arrays.setdefault(_launch(run).model_dump_json(), []).append(run)
    for of_one_launch in arrays.values():
        name = f"rlhf:{'/'.join(sweep_dir.parts[-2:])}"
        ids = submit(of_one_launch, _launch(of_one_launch[0]), folder=sweep_dir, name=name)
        master = ids[0].partition("_")[0]
        shown = f"job {ids[0]}" if len(ids) == 1 else f"array {master}: {len(ids)} jobs, {ids[0]} to {ids[-1]}"
        logs = log_file(ids[0] if len(ids) == 1 else f"{master}_*", sweep_dir)
        _say(console, shown, logs, sweep_dir, [master])


def _launch(run: RunFolder) -> Launch:
    return Launch.model_validate(run.read_config()["launch"])


def _say(console: Console, what: str, logs: Path, folder: Path, job_ids: list[str]) -> None:
    lines = (
        f"submitted to Slurm: {what}",
        f"  logs:   {_shown(logs)}",
        f"  watch:  rlhf status {_shown(folder)}",
        f"  cancel: scancel {' '.join(job_ids)}",
    )
    for line in lines:
        console.print(line, soft_wrap=True, highlight=False, markup=False)


def _shown(path: Path) -> str:
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)
