"""Resume a run: read what it began with, judge what was typed against it, and train on from its newest checkpoint.

A change is accepted if it cannot change the result, or if `--allow` names it (tables/resume_keys.py).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

from rich.console import Console

from rlhf_cli.config.imported_code import noted_code
from rlhf_cli.config.origins import Origins
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.config.schema.reward_sections import Weight
from rlhf_cli.config.suggestions import KnownKeys, nearest_path
from rlhf_cli.display.start_panel import show_start
from rlhf_cli.errors import RunError
from rlhf_cli.launch.freeze import absolute_paths, frozen_config, take_as_ours
from rlhf_cli.launch.gpu_locks import gpus_held
from rlhf_cli.launch.one_run import refuse_other_size, show_end_of, show_run_folder, train_frozen
from rlhf_cli.plan.checks.machine_checks import DEADLINE, has_passed
from rlhf_cli.plan.devices import planned_processes
from rlhf_cli.plan.launch_plan import plan_launch
from rlhf_cli.plan.preflight import preflight
from rlhf_cli.plan.prepare import Prepared, prepare_from
from rlhf_cli.plan.run_plan import Plan
from rlhf_cli.runs.checkpoint_folders import missing_state
from rlhf_cli.runs.metrics_file import iter_metrics
from rlhf_cli.runs.provenance import rewrite_config, sha256
from rlhf_cli.runs.run_folder import PENDING_CONFIG, RunFolder, checkpoints_in, read_json, typed_path
from rlhf_cli.runs.run_status import RunState, Status, own_job_id, read_status, refuse_links, update_status
from rlhf_cli.runs.writer_lock import only_writer
from rlhf_cli.tables.resume_keys import CODE, CONFIG, DATA, Condition, Effect, kind_of_file, row_of
from rlhf_cli.tables.trl_values import FOLLOW_EVALUATIONS
from rlhf_cli.text.json_values import JsonTree, JsonValue, leaves, section
from rlhf_cli.text.suggest import nearest

if TYPE_CHECKING:
    from rlhf_cli.launch.group import Leader

_MEASURED = ("offset", "with_eos")
_HOW_IT_WAS_FOUND = ("run.name", "run.root", "run.resume")  # keys that only locate the run; a typed one changes nothing
_LONGEST = 60
_HASH = 12
ABSENT = "not set"  # marks a key without a value; compared by identity
_ANY_LENGTH = ("constant", "constant_with_warmup", "inverse_sqrt", *FOLLOW_EVALUATIONS)
"""Schedules of transformers in which no learning rate depends on the total number of steps."""


@dataclass(frozen=True)
class Change:
    """A key whose typed value differs from the frozen one (ABSENT: none), with its verdict and the reason."""

    path: tuple[str, ...]
    old: JsonValue
    new: JsonValue
    effect: Effect = "never"
    reason: str = ""

    @property
    def key(self) -> str:
        """Return the dotted key."""
        return ".".join(self.path)

    def describe(self) -> str:
        """Return `trainer.args.max_steps: 100 -> 200`."""
        return f"{self.key}: {_shown(self.old)} -> {_shown(self.new)}"

    def is_longer(self, step: int) -> bool:
        """Return whether it lets a run go on that finished at `step`."""
        limit = {"trainer.args.max_steps": step, "trainer.args.num_train_epochs": self.old}.get(self.key)
        return isinstance(self.new, int | float) and isinstance(limit, int | float) and self.new > limit


@dataclass(frozen=True)
class ChangedFile:
    """A file whose content has changed: its key in the provenance and its hashes; `now` is None if it is gone."""

    name: str
    path: Path
    before: str
    now: str | None

    def describe(self) -> str:
        """Return the file's name, path and both shortened hashes."""
        now = "gone" if self.now is None else self.now[:_HASH]
        what = self.name if str(self.path) in self.name else f"{self.name} ({self.path})"
        return f"{what}: sha256 {self.before[:_HASH]} -> {now}"


@dataclass(frozen=True)
class Resumed:
    """A run to be resumed, with the accepted changes `taken` and the allowed changed `files`."""

    folder: RunFolder
    status: Status
    prepared: Prepared
    plan: Plan | None = None  # None if the run has finished and no change makes it longer
    taken: tuple[Change, ...] = ()
    files: tuple[ChangedFile, ...] = ()

    def shown_changes(self) -> list[str]:
        """Return a line for every accepted change (old value, new value, reason) and every changed file."""
        lines = [f"{change.describe()}  ({change.reason})" for change in self.taken]
        lines += [f"{file.describe()}  (allowed)" for file in self.files]
        if not read_json(self.folder.provenance):
            lines.append("provenance.json is missing, so changes of the data and the reward code cannot be seen")
        return lines


def resumed(folder: RunFolder, typed: Prepared, allowed: Collection[str]) -> Resumed:
    """Return the run in `folder` with the typed changes that cannot change the result or that `allowed` names.

    Raise RunError naming every refused key and file, or an unreadable file, and what `preflight` raises.
    """
    refuse_links(folder.path)
    for _ in iter_metrics(folder.metrics):  # reports a damaged file before anything is loaded
        pass
    status, provenance, step = read_status(folder), read_json(folder.provenance), newest_step(folder)
    world_size = provenance.get("world_size")
    ran_as = world_size if isinstance(world_size, int) else None
    frozen = prepare_from(folder, []).experiment.model_dump(mode="json")
    _refuse_unknown(allowed, frozen, typed)
    changes = [_judged(change, allowed, typed.experiment, ran_as) for change in _changes(frozen, typed)]
    old = section(frozen, DEADLINE[0]).get(DEADLINE[1])
    if isinstance(old, str) and has_passed(old) and all(change.path != DEADLINE for change in changes):
        changes.append(Change(DEADLINE, old, None, "taken", "it has passed"))
    taken = tuple(change for change in changes if change.effect == "taken")

    prepared = prepare_from(folder, [], adjust=partial(_apply, taken))
    is_finished = status.state == RunState.FINISHED
    is_lifted = status.stopped_by_rule is not None and any(change.path[0] == "stop" for change in taken)
    if is_finished and not is_lifted and not any(change.is_longer(status.step) for change in taken):
        _refuse_changes(folder, changes, [], step, is_over=not any(change.is_longer(status.step) for change in changes))
        return Resumed(folder, status, prepared)
    plan = preflight(prepared.experiment, prepared.composed, folder=folder.path)
    noted = section(provenance, "sha256")  # also files imported during training, which reading the source does not find
    plan = replace(plan, files={**noted_code(noted), **plan.files})
    files = []  # those that have changed since the start, unless `taken` names another file
    for name, path in {CONFIG: folder.config, **plan.files}.items():
        key, before = name.partition("[")[0], noted.get(name)
        if isinstance(before, str) and not any(f"{change.key}.".startswith(f"{key}.") for change in taken):
            now = sha256(path)
            if now != before and not (name == CONFIG and now == noted.get(PENDING_CONFIG)):
                files.append(ChangedFile(name, path, before, now))
    _refuse_changes(folder, changes, [file for file in files if kind_of_file(file.name) not in allowed], step)
    where, got = str(folder.checkpoints), f"checkpoint-{step}" if step else "no checkpoint"
    if (taken or files) and (last := plan.workload.steps) is not None and last < step:
        what, expected = f"the run would end at step {last}, before its newest checkpoint", f"{step} steps or more"
        hint = f"rlhf train ... model.path={typed_path(folder.checkpoints)}/{got}"
        raise RunError(what, where=where, got=got, expected=expected, hint=hint)
    if is_finished and step < status.step:  # this and the next the ranks would refuse only after loading a model
        what, expected = "the run has finished, and its last checkpoint was not kept", f"checkpoint-{status.step}"
        hint = f"rlhf train ... model.path={typed_path(folder.model)}"
        raise RunError(what, where=where, got=got, expected=expected, hint=hint)
    if step:
        missing_state(folder.checkpoints / got, may_lose=prepared.experiment.run.resume_weights_only)
    return Resumed(folder, status, prepared, plan, taken, tuple(files))


def newest_step(folder: RunFolder) -> int:
    """Return the step of the newest checkpoint, 0 without one."""
    return max((step for step, _ in checkpoints_in(folder.checkpoints)), default=0)


def _refuse_unknown(allowed: Collection[str], frozen: JsonTree, typed: Prepared) -> None:
    """Raise RunError for a name of `--allow` that is no key, no section and no kind of files."""
    if not allowed:
        return
    new = typed.experiment.model_dump(mode="json")
    paths = [*KnownKeys.of(new).keys, *(tuple(key.split(".")) for tree in (frozen, new) for key, _ in leaves(tree))]
    known = {".".join(path[:depth]) for path in paths for depth in range(1, len(path) + 1)}
    for name in allowed:
        if name not in {DATA, CODE, CONFIG} | known:
            close = nearest(name, (DATA, CODE, CONFIG)) or nearest_path(name, sorted(known))
            what, expected = "--allow names no key of the run", f"a key, a section, or {DATA}, {CODE} or {CONFIG}"
            hint = f"--allow {close}" if close else "rlhf resume --help"
            raise RunError(what, where="--allow", got=name, expected=expected, hint=hint)


def _changes(frozen: JsonTree, typed: Prepared) -> list[Change]:
    """Return the differences between a frozen configuration and what was typed, in the order of the configuration.

    `run:NAME` and `auto` are no change if the frozen value is one that they once stood for.
    """
    new = cast(JsonTree, absolute_paths(typed.experiment.model_dump(mode="json")))
    words = dict(leaves(typed.as_written.model_dump(mode="json")))
    return [
        change
        for change in _different(frozen, new, ())
        if not _still_means(words.get(change.key), change) and change.key not in _HOW_IT_WAS_FOUND
    ]


def _judged(change: Change, allowed: Collection[str], experiment: Experiment, ran_as: int | None) -> Change:
    row = row_of(change.key)
    effect, reason = row.effect, row.reason
    if (why_not := _why_not(row.only_if, experiment, ran_as, change.old)) is not None:
        effect, reason = ("never" if row.else_never else "by name"), why_not
    if effect == "by name" and any(change.key == name or change.key.startswith(f"{name}.") for name in allowed):
        effect, reason = "taken", f"allowed; {reason}"
    return replace(change, effect=effect, reason=reason)


def _why_not(condition: Condition | None, experiment: Experiment, ran_as: int | None, old: object) -> str | None:
    """Return why a change affects the result, None if the condition of its row in tables/resume_keys.py holds.

    `ran_as` is the number of processes of the run, None if it never started; `old` is the value before the change.
    """
    setting = experiment.trainer.setting
    schedule, warmup = str(setting("lr_scheduler_type")), setting("warmup_steps")
    if condition == "steps alone set the learning rate":
        led = [str(kind) for kind in (old, schedule) if kind in FOLLOW_EVALUATIONS]
        return f"lr_scheduler_type={led[0]} goes on from the rate to which the evaluations led" if led else None
    if condition == "steps do not shape the run":
        if schedule not in _ANY_LENGTH:
            return f"lr_scheduler_type={schedule} spreads the learning rate over all steps"
        is_share = isinstance(warmup, float) and 0 < warmup < 1
        if schedule != "constant" and (is_share or setting("warmup_ratio")):
            return "the warm-up is a share of all steps"
        for name, reward in experiment.rewards.items():
            if isinstance(reward.weight, Weight) and reward.weight.fraction is not None:
                return f"rewards.{name}.weight changes over a fraction of all steps"
        return None
    if condition == "no best is chosen":
        if setting("load_best_model_at_end"):
            return "load_best_model_at_end chooses among the checkpoints and evaluations that there are"
        if schedule in FOLLOW_EVALUATIONS:
            return f"lr_scheduler_type={schedule} follows the evaluations"
    if condition == "as many processes" and ran_as not in (None, now := planned_processes(experiment.launch)):
        return f"{now} processes, but the run used {ran_as}; rollouts and random state belong to a process"
    return None


def _different(old: JsonValue, new: JsonValue, path: tuple[str, ...]) -> Iterator[Change]:
    if isinstance(old, dict) and isinstance(new, dict):
        for name in dict.fromkeys((*old, *new)):
            yield from _different(old.get(name, ABSENT), new.get(name, ABSENT), (*path, name))
    elif old != new:
        yield Change(path, old, new)


def _still_means(word: object, change: Change) -> bool:
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


def _apply(taken: Sequence[Change], tree: JsonTree, origins: Origins) -> None:
    for change in taken:
        *parents, name = change.path
        place = tree
        for part in parents:
            place = cast(JsonTree, place.setdefault(part, {}))
        if change.new is ABSENT:
            place.pop(name, None)
        else:
            place[name] = change.new
    origins.add_command_line(change.key for change in taken)


def _refuse_changes(
    folder: RunFolder, changes: list[Change], files: list[ChangedFile], step: int, *, is_over: bool = False
) -> None:
    refused = [change for change in changes if change.effect != "taken"]
    if not refused and not files:
        return
    allowable = [change.key for change in refused if change.effect == "by name"]
    allowable += dict.fromkeys(kind_of_file(file.name) for file in files)
    hints = [f"rlhf resume {folder.typed}  # without the changes"] if refused else []
    if allowable:
        hints.append(" ".join(f"--allow {name}" for name in allowable) + f"  # use the new values from step {step} on")
    another = "rlhf train ... model.path=CHECKPOINT  # a new run, for a key that cannot be allowed"
    lines = [f"{change.describe()}\n  {change.reason}" for change in refused]
    if is_over:  # no step is left on which to use a new value
        hints = [f"rlhf train ... model.path={typed_path(folder.model)}  # a new run from the weights of this one"]
    got, hint = "\n".join([*lines, *(file.describe() for file in files)]), "\n".join(hints)
    what, where = "these changes would not continue the same run", f"{folder.shown}, at step {step}"
    advice = another if any(change.effect == "never" for change in refused) and not is_over else None
    raise RunError(what, where=where, got=got, expected="the old values and files", hint=hint, advice=advice)


def resume_once(console: Console, run: Resumed, *, take_over: bool, leader: Leader | None = None) -> None:
    """Resume a run with the typed changes from its newest checkpoint, or report a finished one."""
    folder, status = run.folder, run.status
    if run.plan is None:
        say_finished(console, folder)
        return
    refuse_other_size(leader, run.prepared, run.plan.processes)
    with only_writer(folder, take_over=take_over) as taken_over:
        changes, experiment = run.shown_changes(), run.prepared.experiment
        is_own_job = (job_id := own_job_id()) is not None and status.job_id == job_id
        if experiment.launch.slurm is not None and not is_own_job:
            from rlhf_cli.launch.slurm import check_slurm, submit_frozen

            check_slurm(experiment.launch)
            freeze_changes(run)
            submit_frozen(console, folder)
            return
        launch = plan_launch(experiment, folder.path, resume=True, accelerate_env=run.plan.accelerate_env)
        show_start(console, experiment, run.plan, title=f"{folder.label}, resumed", folder=folder.shown)
        if status.state != RunState.QUEUED:
            console.print(f"{folder.label} {status.was_in_words}")
        for line in [*([taken_over] if taken_over else []), *changes]:
            console.print(f"  {line}", markup=False, soft_wrap=True)
        with gpus_held(launch, folder):
            freeze_changes(run, is_own_job=is_own_job)
            train_frozen(console, folder, launch, experiment.launch, resume=True, leader=leader)
            show_end_of(console, folder)


def freeze_changes(run: Resumed, *, is_own_job: bool = False) -> None:
    """Write the changed configuration of a run, or of a sweep's; it was checked before."""
    assert run.plan is not None
    if run.status.state == RunState.FINISHED:  # killed before it trains, it would look done though longer
        update_status(run.folder, state=RunState.PREEMPTED, reason="it is longer now, and has not gone on yet")
    if run.taken or run.files:
        note: JsonTree = {
            "step": newest_step(run.folder),
            "changes": {change.key: change.describe() for change in run.taken},
            "files": {file.name: [file.before, file.now] for file in run.files},
        }
        _, text = frozen_config(run.prepared.experiment, run.prepared.composed)
        rewrite_config(run.folder, text, files=run.plan.files, note=note)
    if not is_own_job:  # a node of Slurm's may have another cache, and so another key
        take_as_ours(run.folder)


def say_finished(console: Console, folder: RunFolder) -> None:
    """Print that the run has finished, and where. If a rule ended it, print how to continue without the rule."""
    status = read_status(folder)
    console.print(f"nothing to do: the run has finished, at step {status.step}")
    if reason := status.stopped_by_rule:
        console.print(f"  {reason}", markup=False)
        without = f"  rlhf resume {folder.typed} stop=null  # continues without the rule, to step {status.max_steps}"
        console.print(without, markup=False, soft_wrap=True)
    show_run_folder(console, folder)
