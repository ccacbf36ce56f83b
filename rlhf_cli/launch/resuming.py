"""Resume a run: read what it began with, judge what was typed, and train on from its newest checkpoint.

A run that this user did not make is resumed only if the user trusts what it would run, submit or send.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from rlhf_cli.config.asked_keys import asked_of
from rlhf_cli.config.imported_code import noted_code
from rlhf_cli.config.origins import Origins
from rlhf_cli.display.start_panel import show_start
from rlhf_cli.errors import RunError
from rlhf_cli.launch.freeze import freeze_again
from rlhf_cli.launch.gpu_locks import gpus_held
from rlhf_cli.launch.one_run import refuse_other_size, show_end_of, show_run_folder, train_frozen
from rlhf_cli.launch.resume_changes import (
    ABSENT,
    Change,
    ChangedFile,
    changed_files,
    changes_between,
    is_longer,
    is_meant,
    is_shown,
    judged,
    refuse_changes,
)
from rlhf_cli.plan.launch_plan import plan_launch
from rlhf_cli.plan.preflight import preflight
from rlhf_cli.plan.prepare import Adjust, Prepared, prepare_from
from rlhf_cli.plan.run_plan import Plan
from rlhf_cli.runs.checkpoint_folders import missing_state, refuse_missing
from rlhf_cli.runs.metrics_file import iter_metrics
from rlhf_cli.runs.provenance import add_to_provenance, is_made_by_us, made_by, maker_of
from rlhf_cli.runs.run_folder import SWEEP, RunFolder, checkpoints_in, read_json
from rlhf_cli.runs.run_overview import refuse_links, words_in
from rlhf_cli.runs.run_status import (
    FINISHED,
    KILLED,
    PREEMPTED,
    QUEUED,
    Status,
    describe_state,
    own_job_id,
    read_status,
    stopped_by_rule,
)
from rlhf_cli.runs.writer_lock import only_writer
from rlhf_cli.text.json_values import JsonTree, section

if TYPE_CHECKING:
    from rlhf_cli.launch.group import Leader

_LONGEST = 300


@dataclass(frozen=True)
class Resumed:
    """A run to be resumed, with the typed changes applied.

    `taken` are the accepted changes, `files` the changed files that were allowed, `notices` lines for the user.
    `is_done`: the run has finished and no typed change makes it longer.
    """

    folder: RunFolder
    status: Status
    prepared: Prepared
    plan: Plan | None
    taken: tuple[Change, ...]
    files: tuple[ChangedFile, ...]
    notices: tuple[str, ...]
    is_done: bool


def resumed(folder: RunFolder, typed: Prepared, allowed: Collection[str]) -> Resumed:
    """Return the run in `folder` with the typed changes.

    A change is accepted if it cannot change the result or `allowed` names it. Raise RunError naming every refused key
    and file with both values, RunError for an unreadable file of the folder, and what `prepare_from` and `preflight`
    raise.
    """
    refuse_links(folder.path)
    for _ in iter_metrics(folder.metrics):  # reports a damaged file before anything is loaded
        pass
    status, provenance, step = read_status(folder), read_json(folder.provenance), newest_step(folder)
    world_size = provenance.get("world_size")
    ran_as = world_size if isinstance(world_size, int) else None
    frozen = prepare_from(folder, []).experiment.model_dump(mode="json")
    changes = [judged(change, allowed, typed.experiment, ran_as, step) for change in changes_between(frozen, typed)]
    taken = tuple(change for change in changes if change.is_taken)
    prepared = prepare_from(folder, [], adjust=_applied(taken))
    if _is_done(status, taken):
        refuse_changes(folder, changes, [], allowed, step)
        return Resumed(folder, status, prepared, None, (), (), (), is_done=True)
    plan = preflight(prepared.experiment, prepared.composed, folder=folder.path)
    # Reading the source does not find files that were imported during training.
    plan = replace(plan, files={**noted_code(section(provenance, "sha256")), **plan.files})
    files = [file for file in changed_files(folder, provenance, plan.files) if not is_meant(file, taken)]
    refuse_changes(folder, changes, files, allowed, step)
    _refuse_missing_checkpoint(folder, status, weights_only=prepared.experiment.run.resume_weights_only)
    unknown = "provenance.json is missing, so changes of the data and the reward code cannot be seen"
    notices = () if provenance else (unknown,)
    return Resumed(folder, status, prepared, plan, taken, tuple(files), notices, is_done=False)


def _is_done(status: Status, taken: Sequence[Change]) -> bool:
    """Return whether the run has finished, and no change makes it longer or lifts the rule that ended it."""
    is_lifted = stopped_by_rule(status) is not None and any(change.path[0] == "stop" for change in taken)
    return status.state == FINISHED and not is_lifted and not any(is_longer(change, status.step) for change in taken)


def _refuse_missing_checkpoint(folder: RunFolder, status: Status, *, weights_only: bool) -> None:
    """Refuse within a second what the ranks would refuse only after loading a model."""
    step = newest_step(folder)
    if status.state == FINISHED and step < status.step:
        raise RunError(
            "the run has finished, and its last checkpoint was not kept",
            where=str(folder.checkpoints),
            got=f"checkpoint-{step}" if step else "no checkpoint",
            expected=f"checkpoint-{status.step}",
            hint=f"rlhf train ... model.path={folder.model}",
        )
    newest = checkpoints_in(folder.checkpoints)[-1][1] if step else None
    if newest and (missing := missing_state(newest)) and not weights_only:
        refuse_missing(newest, missing)


def _applied(changes: Sequence[Change]) -> Adjust:
    """Return a function that makes the changes in a frozen tree, with the command line as their origin."""

    def apply(tree: JsonTree, origins: Origins) -> None:
        for change in changes:
            *parents, name = change.path
            node = tree
            for part in parents:
                below = node.setdefault(part, {})
                if not isinstance(below, dict):
                    below = node[part] = {}
                node = below
            if change.new is ABSENT:
                node.pop(name, None)
            else:
                node[name] = change.new
        origins.add_command_line(change.key for change in changes)

    return apply


def shown_changes(run: Resumed) -> list[str]:
    """Return a line for every accepted change (old value, new value, reason) and every changed file."""
    lines = [f"{change.describe()}  ({change.reason})" for change in run.taken if is_shown(change)]
    return [*lines, *(f"{file.describe()}  (allowed)" for file in run.files), *run.notices]


def noted(run: Resumed) -> JsonTree:
    """Return the entry for provenance.json: the step, the changes, the changed files."""
    return {
        "step": newest_step(run.folder),
        "changes": {change.key: change.describe() for change in run.taken if is_shown(change)},
        "files": {file.name: [file.before, file.now] for file in run.files},
    }


def newest_step(folder: RunFolder) -> int:
    return max((step for step, _ in checkpoints_in(folder.checkpoints)), default=0)


def resume_once(console: Console, run: Resumed, *, take_over: bool, leader: Leader | None = None) -> None:
    """Resume a run from its newest checkpoint, after freezing the typed changes into it.

    A finished run is reported and left untouched. Raise the errors of `only_writer`, and any error that ends the run.
    """
    folder, status = run.folder, run.status
    if run.is_done or run.plan is None:
        say_finished(console, folder)
        return
    refuse_other_size(leader, run.prepared, run.plan.processes)
    with only_writer(folder, take_over=take_over) as taken_over:
        changes = shown_changes(run)
        experiment, composed = run.prepared.experiment, run.prepared.composed
        if run.taken or run.files:
            freeze_again(folder, experiment, composed, files=run.plan.files, note=noted(run))
        is_own_job = (job_id := own_job_id()) is not None and read_status(folder).job_id == job_id
        if not is_own_job:  # a node of Slurm's may have another cache, and so another key
            take_as_ours(folder)
        if experiment.launch.slurm is not None and not is_own_job:
            from rlhf_cli.launch.slurm_submission import check_slurm, submit_frozen

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
    was = describe_state(status.state, status.reason)
    reason = f": {status.reason}" if status.reason and was in (KILLED, PREEMPTED) else ""
    return f"was {was} at step {status.step}{reason}"


def say_finished(console: Console, folder: RunFolder) -> None:
    """Print that the run has finished, and where. If a rule ended it, print how to continue without the rule."""
    status = read_status(folder)
    console.print(f"nothing to do: the run has finished, at step {status.step}", highlight=False)
    if reason := stopped_by_rule(status):
        console.print(f"  {reason}", highlight=False, markup=False)
        without = f"  rlhf resume {folder.shown} stop=null  # continues without the rule, to step {status.max_steps}"
        console.print(without, highlight=False, markup=False, soft_wrap=True)
    show_run_folder(console, folder)


def refuse_foreign_code(run: RunFolder, *, trust: bool, command: str) -> None:
    """Raise RunError if a run that this user did not make would run code, submit a job or send data.

    The error lists everything of this kind; with `trust` it is printed to stderr instead.
    `command` is the typed command, such as `rlhf resume RUN`.
    """
    asked = asked_of(run.read_config())
    if not is_made_by_us(run.provenance, asked):
        _refuse(run.config, asked, run.provenance, trust=trust, command=command)


def refuse_foreign_words(sweep: Path, *, trust: bool, command: str) -> None:
    """Do the same for a sweep whose other jobs are made from the words in its sweep.json."""
    file = sweep / SWEEP
    if not is_made_by_us(file, asked := words_in(read_json(file))):
        _refuse(file, asked, file, trust=trust, command=command)


def _refuse(where: Path, asked: list[str], record: Path, *, trust: bool, command: str) -> None:
    shown = [f"{line[:_LONGEST]}{'...' * (len(line) > _LONGEST)}" for line in asked]
    if not trust and asked:
        raise RunError(
            "this run would run code, submit a job or send data, and you may not have made it",
            where=str(where),
            got="\n".join([f"made by {maker_of(record)}", *shown]),
            expected="your own unchanged run, or settings that you have read and trust",
            hint=f"{command} --trust",
        )
    for line in shown:
        print(f"trusted: {line}", file=sys.stderr)


def take_as_ours(run: RunFolder) -> None:
    """Mark a run as this user's own, after the user said to trust its code and resumes it."""
    asked = asked_of(run.read_config())
    if asked and not is_made_by_us(run.provenance, asked):
        add_to_provenance(run, made_by=made_by(asked))
