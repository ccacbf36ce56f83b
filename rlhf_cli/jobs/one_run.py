"""Run one checked experiment: freeze it, show the plan, train, show the result."""

from __future__ import annotations

import os

from rich.console import Console

from rlhf_cli.errors import GuardStopped, Preempted, UserError
from rlhf_cli.jobs.foreign_code import take_as_ours
from rlhf_cli.jobs.prepare import Prepared
from rlhf_cli.jobs.resuming import Resumed, noted, shown_changes
from rlhf_cli.jobs.slurm_jobs import is_for_slurm, submit_frozen
from rlhf_cli.json_values import section
from rlhf_cli.launch import local
from rlhf_cli.launch.freeze import create_run, experiment_name, freeze_again, planned_folder
from rlhf_cli.launch.gpu_locks import gpus_of, holding
from rlhf_cli.launch.rank_failures import way_on
from rlhf_cli.machines.first_machine import run_on_several
from rlhf_cli.plan.launch_plan import plan_launch
from rlhf_cli.plan.run_plan import Plan
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.run_status import KILLED, PREEMPTED, QUEUED, Status, read_status, stopped_by_rule, told_state
from rlhf_cli.runs.writer_lock import only_writer
from rlhf_cli.screen.launch_table import show_launch
from rlhf_cli.screen.start_panel import show_start, show_whole_plan
from rlhf_cli.slurm.slurm_submission import check_slurm


def run_once(console: Console, prepared: Prepared, plan: Plan) -> RunFolder:
    """Run a checked experiment to its end and return its folder.

    Raises any error that ends the run, with a note that names the run folder.
    """
    experiment, composed = prepared.experiment, prepared.composed
    planned = planned_folder(experiment, composed)
    launch = plan_launch(experiment, planned, accelerate_env=plan.machine.accelerate_env)
    with holding(gpus_of(launch), os.path.relpath(planned)):
        folder = create_run(experiment, composed, files=plan.files)
        with only_writer(folder):
            show_start(console, experiment, plan, title=experiment_name(composed), folder=folder.shown)
            go_on(console, folder, resume=False)
    return folder


def show_plan(console: Console, prepared: Prepared, plan: Plan, *, earlier: RunFolder | None = None) -> None:
    """Show what `run_once` would start: panel, processes, their commands. Start nothing."""
    experiment, composed = prepared.experiment, prepared.composed
    folder = earlier.path if earlier else planned_folder(experiment, composed)
    launch = plan_launch(experiment, folder, resume=earlier is not None, accelerate_env=plan.machine.accelerate_env)
    show_whole_plan(console, experiment, plan, title=experiment_name(composed), folder=os.path.relpath(folder))
    show_launch(console, launch)
    console.print("nothing was started or written")


def resume_once(console: Console, run: Resumed, *, take_over: bool) -> None:
    """Resume a run from its newest checkpoint, after freezing the typed changes into it.

    A finished run is reported and left untouched. Raises the errors of `only_writer`, and any error that ends the run.
    """
    folder, status = run.folder, run.status
    if run.is_done or run.plan is None:
        say_finished(console, folder)
        return
    with only_writer(folder, take_over=take_over) as taken_over:
        changes = shown_changes(run)
        if run.taken or run.files:
            experiment, composed = run.prepared.experiment, run.prepared.composed
            freeze_again(folder, experiment, composed, files=run.plan.files, note=noted(run))
        take_as_ours(folder)
        if is_for_slurm(folder):
            check_slurm(run.prepared.experiment.launch, folder.path)
            submit_frozen(console, folder)
            return
        env = run.plan.machine.accelerate_env
        launch = plan_launch(run.prepared.experiment, folder.path, resume=True, accelerate_env=env)
        show_start(console, run.prepared.experiment, run.plan, title=f"{folder.label}, resumed", folder=folder.shown)
        if status.state != QUEUED:
            console.print(f"{folder.label} {was_in_words(status)}", highlight=False)
        for line in [*([taken_over] if taken_over else []), *changes]:
            console.print(f"  {line}", markup=False, highlight=False, soft_wrap=True)
        with holding(gpus_of(launch), folder.shown):
            go_on(console, folder, resume=True)


def was_in_words(status: Status) -> str:
    """Return how the earlier part of a resumed run ended, for example `was stopped by Ctrl-C at step 40`."""
    was = told_state(status.state, status.reason)
    reason = f": {status.reason}" if status.reason and was in (KILLED, PREEMPTED) else ""
    return f"was {was} at step {status.step}{reason}"


def go_on(console: Console, folder: RunFolder, *, resume: bool) -> None:
    """Train the run frozen in `folder` and show its result; with `resume`, start from its newest checkpoint.

    Raises any error that ends the run, with a note that names the run folder.
    """
    train_frozen(console, folder, resume=resume)
    from rlhf_cli.screen.run_end import show_end  # loads the plotting library: a typo must not wait for it

    show_end(console, folder)
    show_run_folder(console, folder)


def train_frozen(console: Console, folder: RunFolder, *, resume: bool) -> None:
    """Train the run frozen in `folder` as `go_on` does, but do not show the result."""
    try:
        if section(folder.read_config(), "launch").get("nodes", 1) != 1:
            run_on_several(folder, console, resume=resume)
        else:
            local.run(folder, console, resume=resume)
    except BaseException as error:
        if not isinstance(error, Preempted | UserError | GuardStopped):  # their messages already say how to go on
            error.add_note(way_on(folder))
        error.add_note(_run_folder_line(folder))
        raise


def say_finished(console: Console, folder: RunFolder) -> None:
    """Print that the run has finished, and where. If a rule ended it, print how to continue without the rule."""
    status = read_status(folder)
    console.print(f"nothing to do: the run has finished, at step {status.step}", highlight=False)
    if reason := stopped_by_rule(status):
        console.print(f"  {reason}", highlight=False, markup=False)
        without = f"  rlhf resume {folder.shown} stop=null  # goes on without the rule, to step {status.max_steps}"
        console.print(without, highlight=False, markup=False, soft_wrap=True)
    show_run_folder(console, folder)


def show_run_folder(console: Console, folder: RunFolder) -> None:
    """Print the path of the run folder, the last line of every run."""
    console.print(_run_folder_line(folder), soft_wrap=True, highlight=False)


def _run_folder_line(folder: RunFolder) -> str:
    """Return the line `run folder: runs/quickstart/...`, which also follows the message of a failed run."""
    return f"run folder: {folder.shown}"
