"""Prepare a run that continues: judge what was typed against what the run began with."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from rlhf_cli.config.imported_code import noted_code
from rlhf_cli.config.origins import Origins
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.config.schema.reward_sections import Weight
from rlhf_cli.errors import RunError
from rlhf_cli.launch.freeze import absolute_paths
from rlhf_cli.plan.devices import planned_processes
from rlhf_cli.plan.preflight import preflight
from rlhf_cli.plan.prepare import Adjust, Prepared, prepare_from
from rlhf_cli.plan.run_plan import Plan
from rlhf_cli.runs.checkpoint_folders import missing_state, refuse_missing
from rlhf_cli.runs.metrics_file import iter_metrics
from rlhf_cli.runs.provenance import PENDING_CONFIG, sha256
from rlhf_cli.runs.run_folder import RunFolder, checkpoints_in, read_json
from rlhf_cli.runs.run_overview import refuse_links
from rlhf_cli.runs.run_status import FINISHED, Status, read_status, stopped_by_rule
from rlhf_cli.tables.resume_keys import CONFIG, kind_of_file, row_of
from rlhf_cli.text.json_values import JsonTree, JsonValue, section

_ANY_LENGTH = ("constant", "constant_with_warmup", "inverse_sqrt", "reduce_lr_on_plateau")
"""Schedules of transformers in which no learning rate depends on the total number of steps."""

Condition = Callable[[Experiment, int | None], str | None]
"""Takes the frozen experiment and the number of processes it ran as (None if it never started). Returns why a change
changes the result, or None if it does not.
"""


def _steps_do_not_shape(experiment: Experiment, _: int | None) -> str | None:
    """Return which setting is spread over all steps, so that another number of steps changes every later one."""
    setting = experiment.trainer.setting
    schedule, warmup = str(setting("lr_scheduler_type")), setting("warmup_steps")
    if schedule not in _ANY_LENGTH:
        return f"lr_scheduler_type={schedule} spreads the learning rate over all steps: those to come get another one"
    is_share = isinstance(warmup, float) and 0 < warmup < 1
    if schedule != "constant" and (is_share or setting("warmup_ratio")):
        return "the warm-up is a share of all steps"
    for name, reward in experiment.rewards.items():
        if isinstance(reward.weight, Weight) and reward.weight.fraction is not None:
            return f"rewards.{name}.weight changes over a fraction of all steps"
    return None


def _as_many_processes(experiment: Experiment, ran_as: int | None) -> str | None:
    """Return why another number of processes would not continue exactly."""
    now = planned_processes(experiment.launch)
    if ran_as is None or now == ran_as:
        return None
    return f"{now} would come up, it ran as {ran_as}, and each has random numbers and rollouts of its own"


def _no_best_is_chosen(experiment: Experiment, _: int | None) -> str | None:
    """Return how the result depends on when the run is evaluated and saved."""
    if experiment.trainer.setting("load_best_model_at_end"):
        return "load_best_model_at_end: which checkpoint is the best hangs on when there is one and how it is evaluated"
    if experiment.trainer.setting("lr_scheduler_type") == "reduce_lr_on_plateau":
        return "lr_scheduler_type=reduce_lr_on_plateau follows the evaluations"
    return None


CONDITIONS: dict[str, Condition] = {
    "steps do not shape the run": _steps_do_not_shape,
    "no best is chosen": _no_best_is_chosen,
    "as many processes": _as_many_processes,
}
"""The names that tables/resume_keys.py uses."""

_MEASURED = ("offset", "with_eos")
_HOW_IT_WAS_FOUND = ("run.name", "run.root", "run.resume")
"""Keys that only locate the run; their changes are not shown."""
_LONGEST = 60
ABSENT = "not set"
"""Marks a key without a value; compared by identity."""


@dataclass(frozen=True)
class Change:
    """A key whose typed value differs from the frozen one, ABSENT if it has no value. `path` holds its parts.

    `is_taken`: it is accepted. `may_be_named`: `--allow` could permit it. `reason` says why.
    """

    path: tuple[str, ...]
    old: JsonValue
    new: JsonValue
    is_taken: bool = False
    may_be_named: bool = False
    reason: str = ""

    @property
    def key(self) -> str:
        """Return the dotted key."""
        return ".".join(self.path)

    def describe(self) -> str:
        """Return `trainer.args.max_steps: 100 -> 200`."""
        return f"{self.key}: {_shown(self.old)} -> {_shown(self.new)}"


def _changes_between(frozen: JsonTree, typed: Prepared) -> list[Change]:
    """Return the differences between a frozen configuration and what was typed, in the order of the configuration.

    A word such as `run:NAME` or `auto` is not a change if the frozen value is one that it once stood for: another run
    of that name may have finished since.
    """
    new = cast(JsonTree, absolute_paths(typed.experiment.model_dump(mode="json")))
    words = typed.as_written.model_dump(mode="json")
    found = []
    for change in _different(frozen, new, ()):
        word: JsonValue = words
        for part in change.path:
            word = word.get(part) if isinstance(word, dict) else None
        if not _still_means(word, change):
            found.append(change)
    return found


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


def _judged(
    change: Change, allowed: Collection[str], experiment: Experiment, ran_as: int | None, newest_step: int
) -> Change:
    """Return the change with its verdict. A new last step before the newest checkpoint is always refused."""
    if change.key == _LENGTH[0] and isinstance(change.new, int) and 0 < change.new < newest_step:
        return replace(change, reason=f"its newest checkpoint is of step {newest_step} already")
    row = row_of(change.key)
    effect, reason = row.effect, row.reason
    if row.only_if is not None and (why_not := CONDITIONS[row.only_if](experiment, ran_as)) is not None:
        effect, reason = ("never" if row.else_never else "by name"), why_not
    if effect == "by name" and any(change.key == name or change.key.startswith(f"{name}.") for name in allowed):
        return replace(change, is_taken=True, may_be_named=True, reason=f"allowed; {reason}")
    return replace(change, is_taken=effect == "taken", may_be_named=effect != "never", reason=reason)


def _different(old: JsonValue, new: JsonValue, path: tuple[str, ...]) -> Iterator[Change]:
    if isinstance(old, dict) and isinstance(new, dict):
        for name in dict.fromkeys((*old, *new)):
            yield from _different(old.get(name, ABSENT), new.get(name, ABSENT), (*path, name))
    elif old != new:
        yield Change(path, old, new)


def _still_means(word: JsonValue, change: Change) -> bool:
    """Return whether the written word still matches the frozen value: `run:NAME` for a run of that name, `auto`."""
    if word == "auto" and change.path[-1] in _MEASURED:
        return True
    if not isinstance(word, str) or not word.startswith("run:") or not isinstance(change.old, str):
        return False
    name = Path(word.removeprefix("run:")).parts
    run = Path(change.old).parent.parts  # .../NAME/RUN/model
    return run[-len(name) :] == name or run[-len(name) - 1 : -1] == name


def _shown(value: JsonValue) -> str:
    if isinstance(value, dict) and ("fn" in value or "model" in value):
        return str(value.get("fn") or value.get("model"))
    text = "null" if value is None else str(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


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
    taken: tuple[Change, ...]
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
    for _ in iter_metrics(folder.metrics):  # reports a damaged file before anything is loaded
        pass
    world_size, step = provenance.get("world_size"), _newest_step(folder)
    ran_as = world_size if isinstance(world_size, int) else None
    changes = [_judged(change, allowed, typed.experiment, ran_as, step) for change in _changes_between(frozen, typed)]
    taken = tuple(change for change in changes if change.is_taken)
    prepared = prepare_from(folder, [], adjust=_applied(taken))
    lifted = stopped_by_rule(status) is not None and any(change.path[0] == "stop" for change in taken)
    is_longer = any(_is_longer(change, status.step) for change in taken)
    is_done = status.state == FINISHED and not is_longer and not lifted
    if is_done:
        _refuse(folder, changes, [], allowed, step)
        return Resumed(folder, status, prepared, None, (), (), (), is_done=True)
    plan = preflight(prepared.experiment, prepared.composed, folder=folder.path)
    # Reading the source does not find files that were imported during training.
    plan = replace(plan, files={**noted_code(section(provenance, "sha256")), **plan.files})
    other = [file for file in changed_files(folder, provenance, plan.files) if not _is_meant(file, taken)]
    _refuse(folder, changes, other, allowed, step)
    if status.state == FINISHED and step < status.step:
        raise RunError(
            "the run has finished and kept no checkpoint of its end to go on from",
            where=str(folder.checkpoints),
            got=f"checkpoint-{step}" if step else "no checkpoint",
            expected=f"checkpoint-{status.step}",
            hint=f"rlhf train ... model.path={folder.model}",
        )
    unknown = "there is no provenance.json: whether data or reward code have changed cannot be said"
    newest = checkpoints_in(folder.checkpoints)[-1][1] if step else None
    # Refuse within a second what the ranks would refuse only after loading a model.
    if newest and (missing := missing_state(newest)) and not prepared.experiment.run.resume_weights_only:
        refuse_missing(newest, missing)
    return Resumed(folder, status, prepared, plan, taken, tuple(other), () if provenance else (unknown,), is_done=False)


def shown_changes(run: Resumed) -> list[str]:
    """Return a line for every accepted change (old value, new value, reason) and every changed file."""
    lines = [f"{one.describe()}  ({one.reason})" for one in run.taken if one.key not in _HOW_IT_WAS_FOUND]
    return [*lines, *(f"{file.describe()}  (allowed)" for file in run.files), *run.notices]


def noted(run: Resumed) -> JsonTree:
    """Return the entry for provenance.json: the step, the changes, the changed files."""
    return {
        "step": _newest_step(run.folder),
        "changes": {one.key: one.describe() for one in run.taken if one.key not in _HOW_IT_WAS_FOUND},
        "files": {file.name: [file.before, file.now] for file in run.files},
    }


def _refuse(
    folder: RunFolder, changes: list[Change], files: list[ChangedFile], allowed: Collection[str], step: int
) -> None:
    """Raise RunError for all refused keys and files together, with both values and what to type instead."""
    files = [file for file in files if file.kind not in allowed]
    refused = [change for change in changes if not change.is_taken]
    if not refused and not files:
        return
    allowable = [change.key for change in refused if change.may_be_named]
    allowable += dict.fromkeys(file.kind for file in files)
    hints = [f"rlhf resume {folder.shown}  # with what it was begun with"] if refused else []
    if allowable:
        hints.append(" ".join(f"--allow {name}" for name in allowable) + f"  # the new from step {step} on")
    if any(not change.may_be_named for change in refused):
        hints.append("rlhf train ... model.path=CHECKPOINT  # a new run, where it cannot be allowed")
    lines = [f"{change.describe()}\n  {change.reason}" for change in refused]
    raise RunError(
        "going on with this would not be the run that was begun",
        where=f"{folder.shown}, which is at step {step}",
        got="\n".join([*lines, *(file.describe() for file in files)]),
        expected="what it was begun with (the value before the arrow)"
        if refused
        else "the files it was begun with, put back",
        hint="\n".join(hints),
    )


def _is_meant(file: ChangedFile, taken: tuple[Change, ...]) -> bool:
    """Return whether the file differs because an accepted change names another file."""
    section = file.name.partition("[")[0]
    return any(change.key == section or change.key.startswith(f"{section}.") for change in taken)


def _is_longer(change: Change, step: int) -> bool:
    new, old = change.new, change.old
    if change.key not in _LENGTH or not isinstance(new, int | float):
        return False
    return new > step if change.key == _LENGTH[0] else isinstance(old, int | float) and new > old


def _newest_step(folder: RunFolder) -> int:
    return max((step for step, _ in checkpoints_in(folder.checkpoints)), default=0)


_SHOWN = 12


@dataclass(frozen=True)
class ChangedFile:
    """A file whose content has changed. `name` is its key in the provenance; `now` is None if the file is gone."""

    name: str
    kind: str
    path: Path
    before: str
    now: str | None

    def describe(self) -> str:
        """Return the file's name, path and both shortened hashes."""
        now = "gone" if self.now is None else self.now[:_SHOWN]
        what = self.name if str(self.path) in self.name else f"{self.name} ({self.path})"
        return f"{what}: sha256 {self.before[:_SHOWN]} -> {now}"


def changed_files(folder: RunFolder, provenance: JsonTree, files: Mapping[str, Path]) -> list[ChangedFile]:
    """Return the files whose content has changed since the run started.

    `files` maps name -> file or folder, as passed to `write_provenance`. Files without a recorded hash are skipped.
    """
    noted = section(provenance, "sha256")
    found = []
    for name, path in {CONFIG: folder.config, **files}.items():
        before = noted.get(name)
        if not isinstance(before, str):
            continue
        now = sha256(path)
        if now != before and not (name == CONFIG and now == noted.get(PENDING_CONFIG)):
            found.append(ChangedFile(name, kind_of_file(name), path, before, now))
    return found
