"""Train a frozen run: in this process, in one process per rank, or together with other machines."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from rich.console import Console

from rlhf_cli.config.schema.launch_sections import Launch
from rlhf_cli.display.start_panel import show_start
from rlhf_cli.errors import CTRL_C, GuardStopped, Preempted, UserError
from rlhf_cli.launch.freeze import create_run, experiment_name, new_folder
from rlhf_cli.launch.ranks_end import forget_failures, resume_hint
from rlhf_cli.launch.stopping import preempted
from rlhf_cli.plan.launch_plan import LaunchPlan, plan_launch
from rlhf_cli.plan.prepare import Prepared
from rlhf_cli.plan.run_plan import Plan
from rlhf_cli.process import environment
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.run_status import FAILED, FINISHED, PREEMPTED, read_status, update_status
from rlhf_cli.runs.writer_lock import only_writer

if TYPE_CHECKING:
    pass


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
            show_end_of(console, folder)
    return folder


def gpus_held(launch: LaunchPlan, folder: RunFolder) -> AbstractContextManager[None]:
    """Open a context in which no other run may use this run's GPUs. Raises RunError if one does already."""
    gpus = (*launch.gpus, *(launch.server.gpus if launch.server is not None else ()))
    if not gpus:
        return nullcontext()
    from rlhf_cli.launch.gpu_locks import holding

    return holding(gpus, folder.shown)


def show_end_of(console: Console, folder: RunFolder) -> None:
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
    from rlhf_cli.launch.ranks_end import conclude
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


def show_run_folder(console: Console, folder: RunFolder) -> None:
    """Print the path of the run folder, the last line of every run."""
    console.print(f"run folder: {folder.shown}", soft_wrap=True, highlight=False)
