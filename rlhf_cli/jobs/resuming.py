"""Prepare a run that continues: judge what was typed against what the run began with."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from rlhf_cli.config import trl_args
from rlhf_cli.config.imported_code import noted_code
from rlhf_cli.config.origins import Origins
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.config.schema.reward_sections import Weight
from rlhf_cli.errors import RunError
from rlhf_cli.jobs.prepare import Prepared, prepare_from
from rlhf_cli.launch.freeze import absolute_paths
from rlhf_cli.plan.devices import planned_processes
from rlhf_cli.plan.preflight import preflight
from rlhf_cli.plan.run_plan import Plan
from rlhf_cli.runs.checkpoint_folders import checkpoints_in, missing_state, refuse_missing
from rlhf_cli.runs.metrics_file import read_metrics
from rlhf_cli.runs.provenance import ChangedFile, changed_files
from rlhf_cli.runs.run_folder import RunFolder, read_json, refuse_links
from rlhf_cli.runs.run_status import FINISHED, Status, read_status, stopped_by_rule
from rlhf_cli.tables.resume_keys import row_of
from rlhf_cli.text.json_values import JsonTree, JsonValue, section

_ANY_LENGTH = ("constant", "constant_with_warmup", "inverse_sqrt", "reduce_lr_on_plateau")
"""Schedules of transformers in which no learning rate depends on the total number of steps."""

Condition = Callable[[Experiment, int | None], str | None]
"""Takes the frozen experiment and the number of processes it ran as (None if it never started). Returns why a change
changes the result, or None if it does not.
"""


def argument(experiment: Experiment, name: str) -> object:
    """Return the value of a TRL argument, or its default if it is not set."""
    default = trl_args.trainer(experiment.trainer.trl).fields.get(name)
    return experiment.trainer.args.get(name, default.default if default is not None else None)


def _steps_do_not_shape(experiment: Experiment, _: int | None) -> str | None:
    """Return which setting is spread over all steps, so that another number of steps changes every later one."""
    schedule = str(argument(experiment, "lr_scheduler_type"))
    if schedule not in _ANY_LENGTH:
        return f"lr_scheduler_type={schedule} spreads the learning rate over all steps: those to come get another one"
    warmup = argument(experiment, "warmup_steps")
    is_share = isinstance(warmup, float) and 0 < warmup < 1
    if schedule != "constant" and (is_share or argument(experiment, "warmup_ratio")):
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
    if argument(experiment, "load_best_model_at_end"):
        return "load_best_model_at_end: which checkpoint is the best hangs on when there is one and how it is evaluated"
    if argument(experiment, "lr_scheduler_type") == "reduce_lr_on_plateau":
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
    """A key whose typed value differs from the frozen one, ABSENT if it has no value.

    `path` holds the parts of the key.
    """

    path: tuple[str, ...]
    old: JsonValue
    new: JsonValue

    @property
    def key(self) -> str:
        """Return the dotted key."""
        return ".".join(self.path)

    def describe(self) -> str:
        """Return `trainer.args.max_steps: 100 -> 200`."""
        return f"{self.key}: {_shown(self.old)} -> {_shown(self.new)}"


@dataclass(frozen=True)
class ChangeVerdict:
    """A change, whether it is accepted, whether `--allow` could permit it, and why."""

    change: Change
    is_taken: bool
    may_be_named: bool
    reason: str


def _changes_between(frozen: JsonTree, typed: Prepared) -> list[Change]:
    """Return the differences between a frozen configuration and what was typed, in the order of the configuration.

    A word such as `run:NAME` or `auto` is not a change if the frozen value is one that it once stood for: another run
    of that name may have finished since.
    """
    new = absolute_paths(typed.experiment.model_dump(mode="json"))
    words = typed.as_written.model_dump(mode="json")
    found = []
    for change in _different(frozen, new, ()):
        word: JsonValue = words
        for part in change.path:
            word = word.get(part) if isinstance(word, dict) else None
        if not _still_means(word, change):
            found.append(change)
    return found


@dataclass(frozen=True)
class Apply:
    """Changes to apply to the frozen tree before validation, with the command line as their origin."""

    changes: tuple[Change, ...]

    def __call__(self, tree: JsonTree, origins: Origins) -> None:
        """Make the changes in `tree`, in place."""
        for change in self.changes:
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
        origins.add_command_line(change.key for change in self.changes)


def _verdict(change: Change, allowed: Collection[str], experiment: Experiment, ran_as: int | None) -> ChangeVerdict:
    row = row_of(change.key)
    effect, reason = row.effect, row.reason
    if row.only_if is not None and (why_not := CONDITIONS[row.only_if](experiment, ran_as)) is not None:
        effect, reason = ("never" if row.else_never else "by name"), why_not
    if effect == "by name" and any(change.key == name or change.key.startswith(f"{name}.") for name in allowed):
        return ChangeVerdict(change, True, True, f"allowed; {reason}")
    return ChangeVerdict(change, effect == "taken", effect != "never", reason)


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
    taken: tuple[ChangeVerdict, ...]
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
    world_size, step = provenance.get("world_size"), _newest_step(folder)
    ran_as = world_size if isinstance(world_size, int) else None
    verdicts = [
        _not_shorter(_verdict(change, allowed, typed.experiment, ran_as), step)
        for change in _changes_between(frozen, typed)
    ]
    taken = tuple(verdict for verdict in verdicts if verdict.is_taken)
    prepared = prepare_from(folder, [], adjust=Apply(tuple(verdict.change for verdict in taken)))
    lifted = stopped_by_rule(status) is not None and any(verdict.change.path[0] == "stop" for verdict in taken)
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
    unknown = "there is no provenance.json: whether data or reward code have changed cannot be said"
    newest = checkpoints_in(folder.checkpoints)[-1][1] if step else None
    # Refuse within a second what the ranks would refuse only after loading a model.
    if newest and (missing := missing_state(newest)) and not prepared.experiment.run.resume_weights_only:
        refuse_missing(newest, missing)
    return Resumed(folder, status, prepared, plan, taken, tuple(other), () if provenance else (unknown,), is_done=False)


def shown_changes(run: Resumed) -> list[str]:
    """Return a line for every accepted change (old value, new value, reason) and every changed file."""
    lines = [f"{one.change.describe()}  ({one.reason})" for one in run.taken if one.change.key not in _HOW_IT_WAS_FOUND]
    return [*lines, *(f"{file.describe()}  (allowed)" for file in run.files), *run.notices]


def noted(run: Resumed) -> JsonTree:
    """Return the entry for provenance.json: the step, the changes, the changed files."""
    return {
        "step": _newest_step(run.folder),
        "changes": {
            verdict.change.key: verdict.change.describe()
            for verdict in run.taken
            if verdict.change.key not in _HOW_IT_WAS_FOUND
        },
        "files": {file.name: [file.before, file.now] for file in run.files},
    }


def _refuse(
    folder: RunFolder, verdicts: list[ChangeVerdict], files: list[ChangedFile], allowed: Collection[str], step: int
) -> None:
    """Raise RunError for all refused keys and files together, with both values and what to type instead."""
    files = [file for file in files if file.kind not in allowed]
    refused = [verdict for verdict in verdicts if not verdict.is_taken]
    if not refused and not files:
        return
    allowable = [verdict.change.key for verdict in refused if verdict.may_be_named]
    allowable += dict.fromkeys(file.kind for file in files)
    hints = [f"rlhf resume {folder.shown}  # with what it was begun with"] if refused else []
    if allowable:
        hints.append(" ".join(f"--allow {name}" for name in allowable) + f"  # the new from step {step} on")
    if any(not verdict.may_be_named for verdict in refused):
        hints.append("rlhf train ... model.path=CHECKPOINT  # a new run, where it cannot be allowed")
    lines = [f"{verdict.change.describe()}\n  {verdict.reason}" for verdict in refused]
    raise RunError(
        "going on with this would not be the run that was begun",
        where=f"{folder.shown}, which is at step {step}",
        got="\n".join([*lines, *(file.describe() for file in files)]),
        expected="what it was begun with (the value before the arrow)"
        if refused
        else "the files it was begun with, put back",
        hint="\n".join(hints),
    )


def _is_meant(file: ChangedFile, taken: tuple[ChangeVerdict, ...]) -> bool:
    """Return whether the file differs because an accepted change names another file."""
    section = file.name.partition("[")[0]
    return any(verdict.change.key == section or verdict.change.key.startswith(f"{section}.") for verdict in taken)


def _not_shorter(verdict: ChangeVerdict, step: int) -> ChangeVerdict:
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
    return max((step for step, _ in checkpoints_in(folder.checkpoints)), default=0)
