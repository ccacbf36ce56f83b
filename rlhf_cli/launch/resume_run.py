"""Resume a run from its newest checkpoint, if it is this user's own or its code is trusted."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from rlhf_cli.config.asked_keys import asked_of
from rlhf_cli.display.start_panel import show_start
from rlhf_cli.errors import RunError
from rlhf_cli.launch.freeze import freeze_again
from rlhf_cli.launch.gpu_locks import gpus_held
from rlhf_cli.launch.group import Leader, refuse_other_size
from rlhf_cli.launch.one_run import show_end_of, show_run_folder, train_frozen
from rlhf_cli.plan.launch_plan import plan_launch
from rlhf_cli.runs.provenance import add_to_provenance, is_made_by_us, made_by, maker_of
from rlhf_cli.runs.run_folder import SWEEP, RunFolder, read_json
from rlhf_cli.runs.run_overview import words_in
from rlhf_cli.runs.run_status import (
    KILLED,
    PREEMPTED,
    QUEUED,
    Status,
    own_job_id,
    read_status,
    stopped_by_rule,
    told_state,
)
from rlhf_cli.runs.writer_lock import only_writer

if TYPE_CHECKING:
    from rlhf_cli.launch.resuming import Resumed

_LONGEST = 300


def refuse_foreign_code(run: RunFolder, *, trust: bool, command: str, typed: str = "nothing") -> None:
    """Raise RunError if a run that this user did not make would run code, submit a job or send data.

    The error lists everything of this kind, except the key `typed`; with `trust` it is printed to stderr instead.
    `command` is the typed command, such as `rlhf resume RUN`.
    """
    asked = asked_of(run.read_config())
    if not is_made_by_us(run.provenance, asked):
        asked = [line for line in asked if not line.startswith(f"{typed}:")]
        _refuse(run.config, asked, run.provenance, trust=trust, command=command)


def refuse_foreign_words(sweep: Path, *, trust: bool, command: str) -> None:
    """Do the same for a sweep whose other jobs are made from the words in its sweep.json."""
    file = sweep / SWEEP
    if not is_made_by_us(file, asked := words_in(read_json(file))):
        _refuse(file, asked, file, trust=trust, command=command)


def _refuse(where: Path, asked: list[str], record: Path, *, trust: bool, command: str) -> None:
    shown = [f"{one[:_LONGEST]}{'...' * (len(one) > _LONGEST)}" for one in asked]
    if not trust and asked:
        raise RunError(
            "this would run code, submit a job or send data for a run that you are not known to have made",
            where=str(where),
            got="\n".join([f"made by {maker_of(record)}", *shown]),
            expected="a run of your own as it was frozen, or settings that you have read and trust",
            hint=f"{command} --trust",
        )
    for line in shown:
        print(f"trusted: {line}", file=sys.stderr)


def take_as_ours(run: RunFolder) -> None:
    """Mark a run as this user's own, after the user said to trust its code and resumes it."""
    asked = asked_of(run.read_config())
    if asked and not is_made_by_us(run.provenance, asked):
        add_to_provenance(run, made_by=made_by(asked))


def resume_once(console: Console, run: Resumed, *, take_over: bool, leader: Leader | None = None) -> None:
    """Resume a run from its newest checkpoint, after freezing the typed changes into it.

    A finished run is reported and left untouched. Raises the errors of `only_writer`, and any error that ends the run.
    """
    folder, status = run.folder, run.status
    if run.is_done or run.plan is None:
        say_finished(console, folder)
        return
    refuse_other_size(leader, run.prepared, run.plan.processes)
    with only_writer(folder, take_over=take_over) as taken_over:
        from rlhf_cli.launch.resuming import noted, shown_changes

        changes = shown_changes(run)
        experiment, composed = run.prepared.experiment, run.prepared.composed
        if run.taken or run.files:
            freeze_again(folder, experiment, composed, files=run.plan.files, note=noted(run))
        is_own_job = (job_id := own_job_id()) is not None and read_status(folder).job_id == job_id
        if not is_own_job:  # a node of Slurm's may have another cache, and so another key
            take_as_ours(folder)
        if experiment.launch.slurm is not None and not is_own_job:
            from rlhf_cli.launch.run_states import submit_frozen
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
            train_frozen(console, folder, launch, experiment.launch, resume=True, leader=leader)
            show_end_of(console, folder)


def was_in_words(status: Status) -> str:
    """Return how the earlier part of a resumed run ended, for example `was stopped by Ctrl-C at step 40`."""
    was = told_state(status.state, status.reason)
    reason = f": {status.reason}" if status.reason and was in (KILLED, PREEMPTED) else ""
    return f"was {was} at step {status.step}{reason}"


def say_finished(console: Console, folder: RunFolder) -> None:
    """Print that the run has finished, and where. If a rule ended it, print how to continue without the rule."""
    status = read_status(folder)
    console.print(f"nothing to do: the run has finished, at step {status.step}", highlight=False)
    if reason := stopped_by_rule(status):
        console.print(f"  {reason}", highlight=False, markup=False)
        without = f"  rlhf resume {folder.shown} stop=null  # goes on without the rule, to step {status.max_steps}"
        console.print(without, highlight=False, markup=False, soft_wrap=True)
    show_run_folder(console, folder)
