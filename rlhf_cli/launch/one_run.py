"""One run: show what it would start, train it here, in a process per rank or as a launcher's rank, or reproduce it."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from rlhf_cli.config.origins import Origins
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.config.schema.run_sections import Launch
from rlhf_cli.display.start_panel import show_launch, show_start
from rlhf_cli.errors import CTRL_C, ConfigError, GuardStopped, Preempted, RankFailed, RunError, UserError
from rlhf_cli.launch.freeze import create_run, experiment_name, new_folder
from rlhf_cli.launch.gpu_locks import gpus_held
from rlhf_cli.launch.stopping import error_of, first_failure, forget_failures, preempted, raise_end, resume_hint
from rlhf_cli.plan.batches import count
from rlhf_cli.plan.checks.machine_checks import without_passed_deadline
from rlhf_cli.plan.launch_plan import LaunchPlan, as_shell, plan_launch, torchrun_command
from rlhf_cli.plan.preflight import preflight
from rlhf_cli.plan.prepare import Prepared, prepare_from
from rlhf_cli.plan.run_plan import Plan
from rlhf_cli.process import environment
from rlhf_cli.runs.run_folder import RunFolder, read_json
from rlhf_cli.runs.run_status import FAILED, FINISHED, preempt, read_status, update_status
from rlhf_cli.runs.writer_lock import only_writer
from rlhf_cli.tables.metrics import REPRODUCED, STEP
from rlhf_cli.text.json_values import JsonTree, section

if TYPE_CHECKING:
    from rlhf_cli.launch.group import Leader
    from rlhf_cli.trainers.assemble.tried_rows import TriedRows


def run_once(console: Console, prepared: Prepared, plan: Plan, leader: Leader | None = None) -> RunFolder:
    """Run a checked experiment; `leader` is set if a launcher started this process. Raise what ends the run."""
    experiment, composed = prepared.experiment, prepared.composed
    refuse_other_size(leader, prepared, plan.processes)
    folder = RunFolder(new_folder(experiment, composed))
    with _created(folder, prepared, plan) as launch:
        show_start(console, experiment, plan, title=experiment_name(composed), folder=folder.shown)
        train_frozen(console, folder, launch, experiment.launch, resume=False, leader=leader)
        show_end_of(console, folder)
    return folder


@contextlib.contextmanager
def _created(folder: RunFolder, prepared: Prepared, plan: Plan) -> Iterator[LaunchPlan]:
    """Freeze an experiment into a new folder, and hold its GPUs and the folder's lock inside the `with` block."""
    try:
        launch = plan_launch(prepared.experiment, folder.path, accelerate_env=plan.accelerate_env)
        with gpus_held(launch, folder):
            create_run(prepared.experiment, prepared.composed, files=plan.files, at=folder.path)
            with only_writer(folder):
                yield launch
    finally:
        with contextlib.suppress(OSError):  # it is empty if another run has the GPU
            folder.path.rmdir()


def show_end_of(console: Console, folder: RunFolder) -> None:
    """Print the table at the end of a run, and its folder."""
    from rlhf_cli.display.run_tables import show_end  # needed only after a run

    show_end(console, folder)
    show_run_folder(console, folder)


def train_frozen(
    console: Console, folder: RunFolder, plan: LaunchPlan, launch: Launch, *, resume: bool, leader: Leader | None = None
) -> None:
    """Train the run frozen in `folder`; with `resume`, start from its newest checkpoint.

    Raise what ends the run, with a note that names the folder: Preempted, RankFailed, or the worker's error.
    """
    place = f"run folder: {folder.shown}"
    try:
        if plan.in_this_process:
            _run_in_this_process(console, folder, plan, leader, resume=resume)
        else:
            _run_processes(console, folder, plan, launch)
    except KeyboardInterrupt as stop:
        if preempt(folder, str(stop) or CTRL_C).state == FINISHED:
            return
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
    from rlhf_cli.launch.worker import run_rank

    forget_failures(folder)
    if plan.world_size > 1 and leader is None:
        raise RankFailed("only `rlhf train` and `rlhf resume` run under a launcher", where="environment")
    if leader is not None:
        leader.begin(console, folder, resume=resume)
    try:
        with environment(plan.shared):
            run_rank(folder, resume=resume)
    except (Exception, KeyboardInterrupt) as error:  # a launcher sends SIGTERM to the ranks that a failed one leaves
        first = first_failure(folder) if plan.world_size > 1 and not isinstance(error, Preempted) else None
        if first is None or first.rank == 0:
            raise
        raise error_of(folder, first) from None  # this rank failed because another one did


def _run_processes(console: Console, folder: RunFolder, plan: LaunchPlan, launch: Launch) -> None:
    from rlhf_cli.launch.elastic import ServerEnded, listening_store, run_ranks
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
    console.print(f"run folder: {folder.shown}", soft_wrap=True)


def refuse_other_size(leader: Leader | None, prepared: Prepared, planned: int) -> None:
    """Raise ConfigError if the launcher started another number of ranks, or is absent for several machines."""
    launch, where = prepared.experiment.launch, prepared.composed.origins.where
    if leader is None and launch.nodes > 1 and launch.slurm is None:
        what, got = "a run on several machines needs a launcher", f"launch.nodes={launch.nodes}"
        expected = "torchrun on each machine, launch=slurm, or one machine"
        advice, place = "`rlhf train --dry-run` prints the torchrun command for each machine", where("launch.nodes")
        raise ConfigError(what, where=place, got=got, expected=expected, hint="launch.nodes=1", advice=advice)
    if leader is None:
        return
    if planned != leader.group.world_size:
        what = f"the run has {planned} ranks, and the launcher has started {leader.group.world_size}"
        got = f"launch.nodes={launch.nodes} and launch.processes={launch.processes}"
        expected = f"{leader.group.nodes} machines of {leader.group.local_size} ranks"
        hint = f"launch.nodes={leader.group.nodes} launch.processes={leader.group.local_size}"
        raise ConfigError(what, where=where("launch.processes"), got=got, expected=expected, hint=hint)
    if launch.rollout_gpus:
        what = "a vLLM server that the run starts needs `rlhf train` without a launcher"
        got = f"launch.rollout_gpus={launch.rollout_gpus}"
        hint = "launch.rollout_gpus=0 trainer.args.vllm_server_base_url=http://HOST:8000"
        raise ConfigError(what, where=where("launch.rollout_gpus"), got=got, hint=hint)


def reproduce(
    console: Console, earlier: RunFolder, words: list[str], steps: int | None
) -> tuple[RunFolder, int | None]:
    """Train a run again with the typed overrides; return the new, untracked run and its last step (None: its end).

    `steps` None means all that were logged. Raise RunError if too few were, or if Slurm would train.
    """
    from rlhf_cli.runs.metric_arrays import read_columns

    status, logged = read_status(earlier), read_columns(earlier.metrics).last_step
    where, slurm_way = str(earlier.path), f"rlhf reproduce {earlier.typed} launch=auto"
    if not logged or (steps or 0) > logged:
        hint = f"--steps {logged}" if logged else f"rlhf resume {earlier.typed}"
        raise RunError("the run has too few steps to compare", where=where, got=f"{logged} logged steps", hint=hint)
    num_steps = steps or logged
    is_whole = num_steps == logged and status.state == FINISHED and status.stopped_by_rule is None

    def adjust(tree: JsonTree, origins: Origins) -> None:
        without_passed_deadline(tree, origins)
        section(tree, "run").update(name=None, resume="never")
        if not is_whole:  # earlier rules did not end the run before this step
            tree["stop"] = {REPRODUCED: {"when": f"{STEP} >= {num_steps}", "for": 1}}

    is_tracked = any(word.lstrip("+").startswith(("track=", "track.")) for word in words)
    prepared = prepare_from(earlier, words if is_tracked else [*words, "track=none"], adjust=adjust)
    experiment = prepared.experiment
    if experiment.launch.slurm is not None:
        raise RunError("reproduce trains on this machine, not in Slurm", where=where, hint=slurm_way)
    plan = preflight(experiment, prepared.composed)
    refuse_other_size(None, prepared, plan.processes)
    choices = {key: str(value) for key, value in section(read_json(earlier.provenance), "choices").items()}
    composed = replace(prepared.composed, choices={**choices, **prepared.composed.choices})
    place = Path(experiment.run.root).expanduser().resolve() / "reproduced" / earlier.label.replace("/", "-")
    numbered = itertools.chain([place], (place.with_name(f"{place.name}-{number}") for number in itertools.count(2)))
    run = RunFolder(next(folder for folder in numbered if not folder.exists()))
    with _created(run, replace(prepared, composed=composed), plan) as launch:
        again = f"{count(num_steps, 'step')} of {earlier.shown} again, in {run.shown}"
        console.print(again, soft_wrap=True)
        train_frozen(console, run, launch, experiment.launch, resume=False)
    return run, None if is_whole else num_steps


def show_plan(console: Console, prepared: Prepared, plan: Plan, *, earlier: RunFolder | None = None) -> None:
    """Show what `run_once` would start: panel, processes, their commands. Start nothing."""
    folder, launch, commands = _planned_launch(prepared, plan, earlier)
    title = experiment_name(prepared.composed)
    show_start(console, prepared.experiment, plan, title=title, folder=folder, is_whole=True)
    show_launch(console, launch, commands)
    console.print("nothing was started or written")


def planned_json(prepared: Prepared, plan: Plan, *, earlier: RunFolder | None = None) -> dict[str, object]:
    """Return the plan of a run, its folder and its ranks' commands; `earlier` is the run that would be resumed."""
    folder, launch, commands = _planned_launch(prepared, plan, earlier)
    command = next(iter(commands.values()), None)
    sizes = {"in_this_process": launch.in_this_process, "nodes": launch.num_nodes, "world_size": launch.world_size}
    server = launch.server
    ranks = [
        {"rank": rank, "gpu": gpu, "command": command or as_shell(launch.shared | launch.own_env(rank), launch.argv)}
        for rank, gpu in launch.ranks.items()
    ]
    return {
        "experiment": experiment_name(prepared.composed),
        "folder": folder,
        "resumes": earlier is not None,
        "plan": plan.as_json(),
        "launch": sizes | {"ranks": ranks, "server": as_shell({}, server.argv) if server is not None else None},
    }


def first_rows(experiment: Experiment, count: int) -> TriedRows:
    """Return the first `count` rows as the trainer reads them, with the scores of some answers to them."""
    from rlhf_cli.trainers.assemble.tried_rows import try_rows  # calls rewards, and loads a tokenizer

    return try_rows(experiment, count)


def _planned_launch(
    prepared: Prepared, plan: Plan, earlier: RunFolder | None
) -> tuple[str, LaunchPlan, dict[str, str]]:
    """Return the folder, the launch, and the commands to type on several machines; {} if this one starts all ranks."""
    experiment, is_resumed, commands = prepared.experiment, earlier is not None, dict[str, str]()
    folder = new_folder(experiment, prepared.composed, is_dry=True) if earlier is None else earlier.path
    launch = plan_launch(experiment, folder, resume=is_resumed, accelerate_env=plan.accelerate_env)
    if launch.num_nodes > 1 and launch.group is None:
        if experiment.launch.slurm is not None:
            commands = {"first node": launch.resume_command, "other nodes": f"srun {launch.resume_command}"}
        else:
            words = ["train", *prepared.composed.typed] if earlier is None else ["resume", earlier.shown]
            commands = {"every machine": torchrun_command(launch, words)}
    return os.path.relpath(folder), launch, commands
