"""Train a frozen run: in this process, in one process per rank, or as one rank of a launcher's group."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console

from rlhf_cli.config.schema.launch_sections import Launch
from rlhf_cli.display.start_panel import show_start
from rlhf_cli.errors import CTRL_C, ConfigError, GuardStopped, Preempted, RankFailed, UserError
from rlhf_cli.launch.freeze import create_run, experiment_name, new_folder
from rlhf_cli.launch.gpu_locks import gpus_held
from rlhf_cli.launch.ranks_end import error_of, first_failure, forget_failures, resume_hint
from rlhf_cli.launch.stopping import preempted
from rlhf_cli.plan.launch_plan import LaunchPlan, plan_launch
from rlhf_cli.plan.prepare import Prepared
from rlhf_cli.plan.run_plan import Plan
from rlhf_cli.process import environment
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.run_status import FAILED, FINISHED, PREEMPTED, read_status, update_status
from rlhf_cli.runs.writer_lock import only_writer

if TYPE_CHECKING:
    from rlhf_cli.launch.group import Leader


def run_once(console: Console, prepared: Prepared, plan: Plan, leader: Leader | None = None) -> RunFolder:
    """Run a checked experiment to its end and return its folder; `leader` is set if a launcher started this process.

    Raise any error that ends the run, with a note that names the run folder.
    """
    experiment, composed = prepared.experiment, prepared.composed
    refuse_other_size(leader, prepared, plan.processes)
    folder = RunFolder(new_folder(experiment, composed))
    launch = plan_launch(experiment, folder.path, accelerate_env=plan.accelerate_env)
    with gpus_held(launch, folder):
        create_run(experiment, composed, files=plan.files, at=folder.path)
        with only_writer(folder):
            show_start(console, experiment, plan, title=experiment_name(composed), folder=folder.shown)
            train_frozen(console, folder, launch, experiment.launch, resume=False, leader=leader)
            show_end_of(console, folder)
    return folder


def show_end_of(console: Console, folder: RunFolder) -> None:
    """Print the table at the end of a run, and its folder."""
    from rlhf_cli.display.run_end import show_end  # needed only after a run

    show_end(console, folder)
    show_run_folder(console, folder)


def train_frozen(
    console: Console, folder: RunFolder, plan: LaunchPlan, launch: Launch, *, resume: bool, leader: Leader | None = None
) -> None:
    """Train the run frozen in `folder` to its end; with `resume`, start from its newest checkpoint.

    Raise any error that ends the run, with a note that names the run folder: Preempted, RankFailed, or the worker's
    error in this process.
    """
    place = f"run folder: {folder.shown}"
    try:
        if plan.in_this_process:
            _run_in_this_process(console, folder, plan, leader, resume=resume)
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


def _run_in_this_process(
    console: Console, folder: RunFolder, plan: LaunchPlan, leader: Leader | None, *, resume: bool
) -> None:
    """Train in this process, alone or as rank 0 of a launcher's group."""
    from rlhf_cli.launch.worker import run_rank

    forget_failures(folder)
    if plan.world_size > 1 and leader is None:
        raise RankFailed("only `rlhf train` and `rlhf resume` run under a launcher", where="environment")
    if leader is not None:
        leader.begin(console, folder, resume=resume)
    try:
        with environment(plan.shared):
            run_rank(folder, resume=resume)
    except Preempted:
        if leader is not None:
            from rlhf_cli.launch.group import leave_together

            leave_together()
        raise
    except Exception:
        first = first_failure(folder) if plan.world_size > 1 else None
        if first is None or first.rank == 0:
            raise
        raise error_of(folder, first) from None  # this rank failed because another one did


def _run_processes(console: Console, folder: RunFolder, plan: LaunchPlan, launch: Launch) -> None:
    """Train in a process per rank on this machine, beside the run's vLLM server if it has one."""
    from rlhf_cli.launch.elastic import ServerEnded, listening_store, run_ranks
    from rlhf_cli.launch.ranks_end import raise_end
    from rlhf_cli.launch.rollout_server import free_ports, rollout_server

    forget_failures(folder)
    store = listening_store()
    plan = plan.at_ports(store.port, *free_ports(2))
    with rollout_server(plan.server, console) as server:

        def look() -> None:  # a rank would wait for a lost server for a minute, or in NCCL for ever
            if server is not None and server.is_lost():
                raise ServerEnded

        end = run_ranks(folder, plan, launch, store=store, look=look)
        is_over = end.asked_by is not None or read_status(folder).state == FINISHED
        if server is not None and not is_over and (failure := server.failure()) is not None:
            update_status(folder, state=FAILED, reason=failure.what)
            raise failure
    raise_end(folder, end, grace_s=launch.grace_s)


def show_run_folder(console: Console, folder: RunFolder) -> None:
    """Print the path of the run folder, the last line of every run."""
    console.print(f"run folder: {folder.shown}", soft_wrap=True, highlight=False)


def refuse_other_size(leader: Leader | None, prepared: Prepared, planned: int) -> None:
    """Raise ConfigError if the launcher started another number of ranks, or is absent for several machines."""
    launch, where = prepared.experiment.launch, prepared.composed.origins.where
    if leader is None and launch.nodes > 1 and launch.slurm is None:
        raise ConfigError(
            "a run on several machines needs a launcher, which starts this command on each of them",
            where=where("launch.nodes"),
            got=f"launch.nodes={launch.nodes}",
            expected="torchrun on each machine, launch=slurm, or one machine",
            hint="launch.nodes=1",
            advice=f"torchrun --nnodes={launch.nodes} --nproc-per-node=GPUS --rdzv-backend=c10d "
            "--rdzv-endpoint=HOST:29500 --no-python rlhf train ... on each machine; rlhf train --dry-run prints it",
        )
    if leader is None:
        return
    if planned != leader.group.world_size:
        raise ConfigError(
            f"the run has {planned} ranks, and the launcher has started {leader.group.world_size}",
            where=where("launch.processes"),
            got=f"launch.nodes={launch.nodes} and launch.processes={launch.processes}",
            expected=f"{leader.group.nodes} machines of {leader.group.local_size} ranks",
            hint=f"launch.nodes={leader.group.nodes} launch.processes={leader.group.local_size}",
        )
    if launch.rollout_gpus:
        raise ConfigError(
            "a vLLM server that the run starts needs `rlhf train` without a launcher",
            where=where("launch.rollout_gpus"),
            got=f"launch.rollout_gpus={launch.rollout_gpus}",
            hint="launch.rollout_gpus=0 trainer.args.vllm_server_base_url=http://HOST:8000",
        )
