"""Train a frozen run: in this process, in one process per rank, or together with other machines."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from rich.console import Console

from rlhf_cli.config.imported_code import code_of
from rlhf_cli.config.schema.launch_sections import Launch
from rlhf_cli.display.start_panel import show_start
from rlhf_cli.errors import CTRL_C, GuardStopped, Preempted, RunError, UserError
from rlhf_cli.jobs.prepare import Prepared
from rlhf_cli.launch.freeze import create_run, experiment_name, freeze_again, new_folder, planned_folder
from rlhf_cli.launch.rank_failures import conclude, forget_failures, resume_hint
from rlhf_cli.launch.stopping import preempted
from rlhf_cli.plan.launch_plan import LaunchPlan, as_shell, plan_launch
from rlhf_cli.plan.run_plan import Plan
from rlhf_cli.process import environment
from rlhf_cli.runs.provenance import add_to_provenance, is_made_by_us, made_by, maker_of
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.run_status import (
    FAILED,
    FINISHED,
    KILLED,
    PREEMPTED,
    QUEUED,
    Status,
    own_job_id,
    read_status,
    stopped_by_rule,
    told_state,
    update_status,
)
from rlhf_cli.runs.writer_lock import only_writer

if TYPE_CHECKING:
    from rlhf_cli.jobs.resuming import Resumed


def refuse_foreign_code(run: RunFolder, *, trust: bool, command: str) -> None:
    """Raise RunError, listing the code, if a run names code and was not made by this user.

    Does nothing with `trust`. `command` is the typed command, such as `rlhf resume RUN`.
    """
    code = code_of(run.read_config())
    if trust or not code or is_made_by_us(run, code):
        return
    raise RunError(
        "this run folder names code to run, and you are not known as the one who made it",
        where=str(run.config),
        got="\n".join([f"made by {maker_of(run)}", *code]),
        expected="a run of your own as it was frozen, or code that you have read and trust",
        hint=f"{command} --trust",
    )


def take_as_ours(run: RunFolder) -> None:
    """Mark a run as this user's own, after the user said to trust its code and resumes it."""
    code = code_of(run.read_config())
    if code and not is_made_by_us(run, code):
        add_to_provenance(run, made_by=made_by(code))


def run_once(console: Console, prepared: Prepared, plan: Plan) -> RunFolder:
    """Run a checked experiment to its end and return its folder.

    Raises any error that ends the run, with a note that names the run folder.
    """
    experiment, composed = prepared.experiment, prepared.composed
    folder = RunFolder(new_folder(experiment, composed))
    launch = plan_launch(experiment, folder.path, accelerate_env=plan.accelerate_env)
    with gpus_held(launch, folder):
        create_run(experiment, composed, files=plan.files, at=folder.path)
        with only_writer(folder):
            show_start(console, experiment, plan, title=experiment_name(composed), folder=folder.shown)
            train_frozen(console, folder, launch, experiment.launch, resume=False)
            _show_end(console, folder)
    return folder


def gpus_held(launch: LaunchPlan, folder: RunFolder) -> AbstractContextManager[None]:
    """Open a context in which no other run may use this run's GPUs. Raises RunError if one does already."""
    gpus = (*launch.gpus, *(launch.server.gpus if launch.server is not None else ()))
    if not gpus:
        return nullcontext()
    from rlhf_cli.launch.gpu_locks import holding

    return holding(gpus, folder.shown)


def show_plan(console: Console, prepared: Prepared, plan: Plan, *, earlier: RunFolder | None = None) -> None:
    """Show what `run_once` would start: panel, processes, their commands. Start nothing."""
    from rlhf_cli.display.plan_tables import show_launch

    experiment, composed = prepared.experiment, prepared.composed
    folder = earlier.path if earlier else planned_folder(experiment, composed)
    is_resumed = earlier is not None
    launch = plan_launch(experiment, folder, resume=is_resumed, accelerate_env=plan.accelerate_env)
    place = os.path.relpath(folder)
    show_start(console, experiment, plan, title=experiment_name(composed), folder=place, is_whole=True)
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
        from rlhf_cli.jobs.resuming import noted, shown_changes

        changes = shown_changes(run)
        experiment, composed = run.prepared.experiment, run.prepared.composed
        if run.taken or run.files:
            freeze_again(folder, experiment, composed, files=run.plan.files, note=noted(run))
        take_as_ours(folder)
        is_own_job = (job_id := own_job_id()) is not None and read_status(folder).job_id == job_id
        if experiment.launch.slurm is not None and not is_own_job:
            from rlhf_cli.jobs.run_states import submit_frozen
            from rlhf_cli.launch.slurm_submission import check_slurm

            check_slurm(experiment.launch)
            submit_frozen(console, folder)
            return
        launch = plan_launch(experiment, folder.path, resume=True, accelerate_env=run.plan.accelerate_env)
        show_start(console, experiment, run.plan, title=f"{folder.label}, resumed", folder=folder.shown)
        if status.state != QUEUED:
            console.print(f"{folder.label} {was_in_words(status)}", highlight=False)
        for line in [*([taken_over] if taken_over else []), *changes]:
            console.print(f"  {line}", markup=False, highlight=False, soft_wrap=True)
        with gpus_held(launch, folder):
            train_frozen(console, folder, launch, experiment.launch, resume=True)
            _show_end(console, folder)


def was_in_words(status: Status) -> str:
    """Return how the earlier part of a resumed run ended, for example `was stopped by Ctrl-C at step 40`."""
    was = told_state(status.state, status.reason)
    reason = f": {status.reason}" if status.reason and was in (KILLED, PREEMPTED) else ""
    return f"was {was} at step {status.step}{reason}"


def _show_end(console: Console, folder: RunFolder) -> None:
    from rlhf_cli.display.run_end import show_end  # needed only after a run

    show_end(console, folder)
    show_run_folder(console, folder)


def train_frozen(console: Console, folder: RunFolder, plan: LaunchPlan, launch: Launch, *, resume: bool) -> None:
    """Train the run frozen in `folder` to its end; with `resume`, start from its newest checkpoint.

    Raises any error that ends the run, with a note that names the run folder: Preempted, RankFailed, or the worker's
    error in this process.
    """
    place = f"run folder: {folder.shown}"
    try:
        if plan.num_nodes > 1:
            from rlhf_cli.launch.machines import run_on_several  # imports torch, as all below

            run_on_several(folder, console, plan, launch, resume=resume)
        elif plan.in_this_process:
            from rlhf_cli.launch.worker import run_rank

            forget_failures(folder)
            with environment(plan.shared):
                run_rank(folder, resume=resume)
        else:
            _run_processes(console, folder, plan, launch)
    except KeyboardInterrupt as stop:
        if read_status(folder).state != PREEMPTED:  # no rank was there to write it
            update_status(folder, state=PREEMPTED, reason=str(stop) or CTRL_C)
        error = preempted(folder, str(stop))
        error.add_note(place)
        raise error from None
    except BaseException as error:
        if not isinstance(error, Preempted | UserError | GuardStopped):  # their messages already say how to go on
            error.add_note(resume_hint(folder))
        error.add_note(place)
        raise


def _run_processes(console: Console, folder: RunFolder, plan: LaunchPlan, launch: Launch) -> None:
    """Train in a process per rank on this machine, beside the run's vLLM server if it has one."""
    from rlhf_cli.launch.elastic import OtherMachineEnded, listening_store, run_ranks
    from rlhf_cli.launch.rollout_server import free_ports, rollout_server
    from rlhf_cli.plan.network import MeetingPlace

    forget_failures(folder)
    store = listening_store(MeetingPlace("127.0.0.1", 0))
    plan = plan.at_ports(store.port, *free_ports(2))
    with rollout_server(plan.server, console) as server:

        def look() -> None:  # a rank would wait for a lost server for a minute, or in NCCL for ever
            if server is not None and server.is_lost():
                raise OtherMachineEnded

        end = run_ranks(folder, plan, launch, store=store, look=look)
        is_over = end.asked_by is not None or read_status(folder).state == FINISHED
        if server is not None and not is_over and (failure := server.failure()) is not None:
            update_status(folder, state=FAILED, reason=failure.what)
            raise failure
    conclude(folder, end, grace_s=launch.grace_s)


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
    console.print(f"run folder: {folder.shown}", soft_wrap=True, highlight=False)


def planned_json(prepared: Prepared, plan: Plan, *, earlier: RunFolder | None = None) -> dict[str, object]:
    """Return the plan of a run, its folder and its ranks' commands; `earlier` is the run that would be resumed."""
    experiment, composed = prepared.experiment, prepared.composed
    folder = earlier.path if earlier is not None else planned_folder(experiment, composed)
    is_resumed = earlier is not None
    launch = plan_launch(experiment, folder, resume=is_resumed, accelerate_env=plan.accelerate_env)
    return {
        "experiment": experiment_name(composed),
        "folder": os.path.relpath(folder),
        "resumes": is_resumed,
        "plan": plan.as_json(),
        "launch": {
            "in_this_process": launch.in_this_process,
            "nodes": launch.num_nodes,
            "world_size": launch.world_size,
            "ranks": [
                {"rank": rank.rank, "gpu": rank.gpu, "command": as_shell({**launch.shared, **rank.env}, rank.argv)}
                for rank in launch.ranks
            ],
            "server": as_shell({}, launch.server.argv) if launch.server is not None else None,
        },
    }
