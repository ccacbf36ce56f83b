"""Compare the typed configuration of a resumed run with its frozen one, key by key."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rlhf_cli.config.origins import Origins
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.errors import RunError
from rlhf_cli.jobs.resume_conditions import CONDITIONS
from rlhf_cli.json_values import JsonTree, JsonValue
from rlhf_cli.launch.freeze import absolute_paths
from rlhf_cli.tables.resume_keys import row_of

_NOT_THERE = "not set"
_MEASURED = ("offset", "with_eos")
_HOW_IT_WAS_FOUND = ("run.name", "run.root", "run.resume")
_LONGEST = 60


class _Absent:
    def __repr__(self) -> str:
        return _NOT_THERE


ABSENT = _Absent()
"""Marks a key without a value."""


@dataclass(frozen=True)
class Change:
    """A key whose typed value differs from the frozen one, ABSENT if it has no value.

    `path` holds the parts of the key.
    """

    path: tuple[str, ...]
    old: JsonValue | _Absent
    new: JsonValue | _Absent

    @property
    def key(self) -> str:
        """Return the dotted key."""
        return ".".join(self.path)

    def describe(self) -> str:
        """Return `trainer.args.max_steps: 100 -> 200`."""
        return f"{self.key}: {_shown(self.old)} -> {_shown(self.new)}"


@dataclass(frozen=True)
class Verdict:
    """A change, whether it is accepted, whether `--allow` could permit it, and why."""

    change: Change
    is_taken: bool
    may_be_named: bool
    reason: str


def changes_between(frozen: JsonTree, typed: Experiment, as_written: Experiment) -> list[Change]:
    """Return the differences, in the order of the configuration.

    `typed` is the typed experiment with `run:NAME` and `auto` resolved; `as_written` still has these words. Such a word
    is not a change if the frozen value is one that it once stood for: another run of that name may have finished since.
    """
    new = absolute_paths(typed.model_dump(mode="json"))
    found = _different(frozen, new, ())
    words = as_written.model_dump(mode="json")
    return [change for change in found if not _still_means(_at(words, change.path), change)]


def judged(
    changes: Iterable[Change], allowed: Collection[str], experiment: Experiment, ran_as: int | None
) -> list[Verdict]:
    """Return a verdict on each change.

    `experiment` is the typed one, `allowed` are the keys or sections named by `--allow`, `ran_as` is the number of
    processes the run had, None if it never started.
    """
    return [_verdict(change, allowed, experiment, ran_as) for change in changes]


def is_shown(change: Change) -> bool:
    """Return whether to show a change to the user; keys that only locate the run are not shown."""
    return change.key not in _HOW_IT_WAS_FOUND


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
            if isinstance(change.new, _Absent):
                node.pop(name, None)
            else:
                node[name] = change.new
        origins.add_command_line(change.key for change in self.changes)


def refusal(
    verdicts: Iterable[Verdict], *, where: str, go_on: str, step: int, allowable: Iterable[str] = ()
) -> RunError:
    """Return the error that lists all refused changes, with both values and the alternatives.

    `go_on` is the command that resumes without changes, `allowable` are further names to suggest for `--allow`.
    """
    refused = [verdict for verdict in verdicts if not verdict.is_taken]
    lines = [f"{verdict.change.describe()}\n  {verdict.reason}" for verdict in refused]
    names = [*(verdict.change.key for verdict in refused if verdict.may_be_named), *allowable]
    ways = [f"{go_on}  # with what it was begun with"]
    if names:
        ways.append(" ".join(f"--allow {name}" for name in names) + f"  # the new from step {step} on")
    if any(not verdict.may_be_named for verdict in refused):
        ways.append("rlhf train ... model.path=CHECKPOINT  # a new run, where it cannot be allowed")
    return RunError(
        "going on with this would not be the run that was begun",
        where=where,
        got="\n".join(lines),
        expected="what it was begun with (the value before the arrow)",
        hint="\n".join(ways),
    )


def _verdict(change: Change, allowed: Collection[str], experiment: Experiment, ran_as: int | None) -> Verdict:
    row = row_of(change.key)
    effect, reason = row.effect, row.reason
    if row.only_if is not None and (why_not := CONDITIONS[row.only_if](experiment, ran_as)) is not None:
        effect, reason = ("never" if row.else_never else "by name"), why_not
    if effect == "by name" and any(change.key == name or change.key.startswith(f"{name}.") for name in allowed):
        return Verdict(change, True, True, f"allowed; {reason}")
    return Verdict(change, effect == "taken", effect != "never", reason)


def _different(old: JsonValue | _Absent, new: JsonValue | _Absent, path: tuple[str, ...]) -> Iterator[Change]:
    if isinstance(old, dict) and isinstance(new, dict):
        for name in dict.fromkeys((*old, *new)):
            yield from _different(old.get(name, ABSENT), new.get(name, ABSENT), (*path, name))
    elif old != new:
        yield Change(path, old, new)


def _at(tree: JsonTree, path: tuple[str, ...]) -> JsonValue:
    node: JsonValue = tree
    for part in path:
        node = node.get(part) if isinstance(node, dict) else None
    return node


def _still_means(word: JsonValue, change: Change) -> bool:
    """Return whether the written word still matches the frozen value: `run:NAME` for a run of that name, `auto`."""
    if word == "auto" and change.path[-1] in _MEASURED:
        return True
    if not isinstance(word, str) or not word.startswith("run:") or not isinstance(change.old, str):
        return False
    name = Path(word.removeprefix("run:")).parts
    run = Path(change.old).parent.parts  # .../NAME/RUN/model
    return run[-len(name) :] == name or run[-len(name) - 1 : -1] == name


def _shown(value: JsonValue | _Absent) -> str:
    if isinstance(value, dict) and ("fn" in value or "model" in value):
        return str(value.get("fn") or value.get("model"))
    text = "null" if value is None else str(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
