"""Judge what was typed against what a run began with: each changed key and each changed file.

A change is accepted if it cannot change the result, or if `--allow` names it (tables/resume_keys.py).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.config.schema.reward_sections import Weight
from rlhf_cli.errors import RunError
from rlhf_cli.launch.freeze import absolute_paths
from rlhf_cli.plan.devices import planned_processes
from rlhf_cli.plan.prepare import Prepared
from rlhf_cli.runs.provenance import PENDING_CONFIG, sha256
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.tables.resume_keys import CONFIG, kind_of_file, row_of
from rlhf_cli.text.json_values import JsonTree, JsonValue, section

_ANY_LENGTH = ("constant", "constant_with_warmup", "inverse_sqrt", "reduce_lr_on_plateau")
"""Schedules of transformers in which no learning rate depends on the total number of steps."""

Condition = Callable[[Experiment, int | None], str | None]
"""Takes the frozen experiment and the number of processes it ran as (None if it never started). Returns why a change
changes the result, or None if it does not.
"""


def _steps_do_not_shape(experiment: Experiment, _: int | None) -> str | None:
    """Return which setting is spread over all steps: another number of steps then changes the later ones."""
    setting = experiment.trainer.setting
    schedule, warmup = str(setting("lr_scheduler_type")), setting("warmup_steps")
    if schedule not in _ANY_LENGTH:
        return f"lr_scheduler_type={schedule} spreads the learning rate over all steps: later steps would get another"
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
    return f"{now} processes, but the run used {ran_as}; rollouts and random state belong to a process"


def _no_best_is_chosen(experiment: Experiment, _: int | None) -> str | None:
    """Return how the result depends on when the run is evaluated and saved."""
    if experiment.trainer.setting("load_best_model_at_end"):
        return "load_best_model_at_end chooses among the checkpoints and evaluations that there are"
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
_LENGTH = ("trainer.args.max_steps", "trainer.args.num_train_epochs")
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


def changes_between(frozen: JsonTree, typed: Prepared) -> list[Change]:
    """Return the differences between a frozen configuration and what was typed, in the order of the configuration.

    A word such as `run:NAME` or `auto` is not a change if the frozen value is one that it once stood for: another run
    of that name may have finished since.
    """
    new = cast(JsonTree, absolute_paths(typed.experiment.model_dump(mode="json")))
    words = typed.as_written.model_dump(mode="json")
    changes = []
    for change in _different(frozen, new, ()):
        word: JsonValue = words
        for part in change.path:
            word = word.get(part) if isinstance(word, dict) else None
        if not _still_means(word, change):
            changes.append(change)
    return changes


def is_shown(change: Change) -> bool:
    """Return whether a change is more than another place for the run."""
    return change.key not in _HOW_IT_WAS_FOUND


def judged(
    change: Change, allowed: Collection[str], experiment: Experiment, ran_as: int | None, newest_step: int
) -> Change:
    """Return the change with its verdict. A new last step before the newest checkpoint is always refused."""
    if change.key == _LENGTH[0] and isinstance(change.new, int) and 0 < change.new < newest_step:
        return replace(change, reason=f"the newest checkpoint is of step {newest_step}")
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


def is_longer(change: Change, step: int) -> bool:
    new, old = change.new, change.old
    if change.key not in _LENGTH or not isinstance(new, int | float):
        return False
    return new > step if change.key == _LENGTH[0] else isinstance(old, int | float) and new > old


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


def is_meant(file: ChangedFile, taken: tuple[Change, ...]) -> bool:
    """Return whether the file differs because an accepted change names another file."""
    section = file.name.partition("[")[0]
    return any(change.key == section or change.key.startswith(f"{section}.") for change in taken)


def refuse_changes(
    folder: RunFolder, changes: list[Change], files: list[ChangedFile], allowed: Collection[str], step: int
) -> None:
    """Raise RunError for all refused keys and files together, with both values and what to type instead."""
    files = [file for file in files if file.kind not in allowed]
    refused = [change for change in changes if not change.is_taken]
    if not refused and not files:
        return
    allowable = [change.key for change in refused if change.may_be_named]
    allowable += dict.fromkeys(file.kind for file in files)
    hints = [f"rlhf resume {folder.shown}  # without the changes"] if refused else []
    if allowable:
        hints.append(" ".join(f"--allow {name}" for name in allowable) + f"  # use the new values from step {step} on")
    if any(not change.may_be_named for change in refused):
        hints.append("rlhf train ... model.path=CHECKPOINT  # a new run, for a key that cannot be allowed")
    lines = [f"{change.describe()}\n  {change.reason}" for change in refused]
    raise RunError(
        "these changes would not continue the same run",
        where=f"{folder.shown}, at step {step}",
        got="\n".join([*lines, *(file.describe() for file in files)]),
        expected="the old value, before the arrow" if refused else "the old files",
        hint="\n".join(hints),
    )
