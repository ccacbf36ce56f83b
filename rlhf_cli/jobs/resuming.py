"""Prepare a run for resuming: accept the typed changes, or refuse all bad ones at once, before loading anything."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

from rlhf_cli.config.imported_code import noted_code
from rlhf_cli.errors import RunError
from rlhf_cli.jobs.prepare import Prepared, prepare_from
from rlhf_cli.jobs.resume_changes import (
    Apply,
    Change,
    Verdict,
    changes_between,
    is_shown,
    judged,
    refusal,
)
from rlhf_cli.json_values import JsonTree, section
from rlhf_cli.plan.preflight import preflight
from rlhf_cli.plan.run_plan import Plan
from rlhf_cli.runs.changed_files import ChangedFile, changed_files
from rlhf_cli.runs.checkpoint_folders import checkpoints_in
from rlhf_cli.runs.checkpoint_state import missing_state, refuse_missing
from rlhf_cli.runs.metrics_file import read_metrics
from rlhf_cli.runs.run_folder import RunFolder, read_json, refuse_links
from rlhf_cli.runs.run_status import FINISHED, Status, read_status, stopped_by_rule

_LENGTH = ("trainer.args.max_steps", "trainer.args.num_train_epochs")


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
    taken: tuple[Verdict, ...]
    files: tuple[ChangedFile, ...]
    notices: tuple[str, ...]
    is_done: bool


def resumed(folder: RunFolder, typed: Prepared, allowed: Collection[str]) -> Resumed:
    """Return the run in `folder` with the typed changes.

    A change is accepted if it cannot change the result or `allowed` names it. Raises RunError naming every refused key
    and file with both values, RunError for an unreadable file of the folder, and what `prepare_from` and `preflight`
    raise.
    """
    refuse_links(folder.path)
    status = read_status(folder)
    frozen = prepare_from(folder, []).experiment.model_dump(mode="json")
    provenance = read_json(folder.provenance)
    read_metrics(folder.metrics)  # reports a damaged file before anything is loaded
    changes = changes_between(frozen, typed.experiment, typed.as_written)
    ran_as = provenance.get("world_size")
    verdicts = judged(changes, allowed, typed.experiment, ran_as if isinstance(ran_as, int) else None)
    step = _newest_step(folder)
    verdicts = [_not_shorter(verdict, step) for verdict in verdicts]
    taken = tuple(verdict for verdict in verdicts if verdict.is_taken)
    prepared = prepare_from(folder, [], adjust=Apply(tuple(verdict.change for verdict in taken)))
    lifted = stopped_by_rule(status) is not None and any(_is_of_stop(verdict.change) for verdict in taken)
    is_longer = any(_is_longer(verdict.change, status.step) for verdict in taken)
    is_done = status.state == FINISHED and not is_longer and not lifted
    if is_done:
        _refuse(folder, verdicts, [], allowed, step)
        return Resumed(folder, status, prepared, None, (), (), (), is_done=True)
    plan = preflight(prepared.experiment, prepared.composed, folder=folder.path)
    # Reading the source does not find files that were imported during training.
    plan = replace(plan, files={**noted_code(section(provenance, "sha256")), **plan.files})
    other = [file for file in changed_files(folder, provenance, plan.files) if not _is_meant(file, taken)]
    _refuse(folder, verdicts, other, allowed, step)
    if status.state == FINISHED and step < status.step:
        raise RunError(
            "the run has finished and kept no checkpoint of its end to go on from",
            where=str(folder.checkpoints),
            got=f"checkpoint-{step}" if step else "no checkpoint",
            expected=f"checkpoint-{status.step}",
            hint=f"rlhf train ... model.path={folder.model}",
        )
    notices = []
    if not provenance:
        notices.append("there is no provenance.json: whether data or reward code have changed cannot be said")
    if step:
        _look_at_newest(folder, may_lose=prepared.experiment.run.resume_weights_only)
    return Resumed(folder, status, prepared, plan, taken, tuple(other), tuple(notices), is_done=False)


def shown_changes(run: Resumed) -> list[str]:
    """Return a line for every accepted change (old value, new value, reason) and every changed file."""
    lines = [f"{verdict.change.describe()}  ({verdict.reason})" for verdict in run.taken if is_shown(verdict.change)]
    return [*lines, *(f"{file.describe()}  (allowed)" for file in run.files), *run.notices]


def noted(run: Resumed) -> JsonTree:
    """Return the entry for provenance.json: the step, the changes, the changed files."""
    return {
        "step": _newest_step(run.folder),
        "changes": {verdict.change.key: verdict.change.describe() for verdict in run.taken if is_shown(verdict.change)},
        "files": {file.name: [file.before, file.now] for file in run.files},
    }


def _refuse(
    folder: RunFolder, verdicts: list[Verdict], files: list[ChangedFile], allowed: Collection[str], step: int
) -> None:
    """Raise RunError for all refused keys and files together."""
    not_allowed = [file for file in files if file.kind not in allowed]
    if all(verdict.is_taken for verdict in verdicts) and not not_allowed:
        return
    kinds = list(dict.fromkeys(file.kind for file in not_allowed))
    error = refusal(
        verdicts,
        where=f"{folder.shown}, which is at step {step}",
        go_on=f"rlhf resume {folder.shown}",
        step=step,
        allowable=kinds,
    )
    if not_allowed:
        lines = [str(error.got)] if error.got else []
        error.got = "\n".join([*lines, *(file.describe() for file in not_allowed)])
        if all(verdict.is_taken for verdict in verdicts):
            error.expected = "the files it was begun with, put back"
            error.hint = str(error.hint).partition("\n")[2]
    raise error


def _is_meant(file: ChangedFile, taken: tuple[Verdict, ...]) -> bool:
    """Return whether the file differs because an accepted change names another file."""
    section = file.name.partition("[")[0]
    return any(verdict.change.key == section or verdict.change.key.startswith(f"{section}.") for verdict in taken)


def _is_of_stop(change: Change) -> bool:
    return change.path[0] == "stop"


def _not_shorter(verdict: Verdict, step: int) -> Verdict:
    """Return the verdict, refused if the new last step is before the newest checkpoint."""
    new = verdict.change.new
    if verdict.change.key == _LENGTH[0] and isinstance(new, int) and 0 < new < step:
        reason = f"its newest checkpoint is of step {step} already"
        return replace(verdict, is_taken=False, may_be_named=False, reason=reason)
    return verdict


def _is_longer(change: Change, step: int) -> bool:
    new, old = change.new, change.old
    if change.key not in _LENGTH or not isinstance(new, int | float):
        return False
    return new > step if change.key == _LENGTH[0] else isinstance(old, int | float) and new > old


def _newest_step(folder: RunFolder) -> int:
    found = checkpoints_in(folder.checkpoints)
    return found[-1][0] if found else 0


def _look_at_newest(folder: RunFolder, *, may_lose: bool) -> None:
    """Refuse within a second what the ranks would refuse only after loading a model."""
    newest: Path = checkpoints_in(folder.checkpoints)[-1][1]
    if (missing := missing_state(newest)) and not may_lose:
        refuse_missing(newest, missing)
