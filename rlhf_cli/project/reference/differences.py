"""Find where two configurations differ, or one differs from the defaults."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from rlhf_cli.config.compose import compose
from rlhf_cli.config.origins import Origins
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.project.reference.function_source import NO_DEFAULT
from rlhf_cli.project.reference.key_reference import key_reference
from rlhf_cli.text.json_values import JsonTree, JsonValue

_WHOLE = ("model.build",)
"""Sections whose parts have no meaning without the rest."""
_OF_ONE_RUN = ("run.name", "run.root")
"""Keys that differ between any two runs and do not affect what a run does."""


def unlike_default(tree: JsonTree, prefix: str = "") -> JsonTree:
    """Return the part of a whole configuration, or of its section `prefix`, that is not default.

    The default is an experiment without any settings (conf/train.yaml and the options that it chooses); for keys that
    it does not have (a reward, a critic), the schema's default.
    """
    kept: JsonTree = {}
    for name, value in tree.items():
        key = f"{prefix}.{name}" if prefix else name
        default = _default_of(key)
        if isinstance(value, dict) and value and key not in _WHOLE:
            below = unlike_default(value, key)
            if below or not isinstance(default, dict):
                kept[name] = below or value  # the section was added, even if all its values are defaults
        elif value != default:
            kept[name] = value
    return kept


def _default_of(key: str) -> object:
    node: JsonValue = _without_settings()
    for part in key.split("."):
        if not isinstance(node, dict) or part not in node:
            reference = key_reference(key)
            return reference.default if reference is not None else NO_DEFAULT
        node = node[part]
    return node


@cache
def _without_settings() -> JsonTree:
    """Return the configuration without any settings: all sections, filled with the schema's defaults."""
    return Experiment.model_validate(compose([]).tree).model_dump(mode="json")


@dataclass(frozen=True)
class Side:
    """One of two configurations: its label, values and origins."""

    label: str
    tree: JsonTree
    origins: Origins
    is_run: bool = False


@dataclass(frozen=True)
class SideValue:
    """The value of a key on one side. `is_there` is False if the key is missing; `origin` is '' for a default."""

    value: JsonValue
    origin: str
    is_there: bool = True


@dataclass(frozen=True)
class KeyDifference:
    """A key with different values in two configurations. If only one has a section, it is the whole section."""

    key: str
    here: SideValue
    there: SideValue


def differences(here: Side, there: Side) -> list[KeyDifference]:
    """Return all differences, in the order of the sections; if a side is a run, skip keys that only name a run.

    Paths that are written differently but lead to the same place are equal.
    """
    is_run = here.is_run or there.is_run
    found = _below(here, there, here.tree, there.tree, "")
    return [one for one in found if not (is_run and one.key in _OF_ONE_RUN)]


def _below(here: Side, there: Side, first: JsonTree, second: JsonTree, prefix: str) -> Iterator[KeyDifference]:
    for name in dict.fromkeys([*first, *second]):
        key = f"{prefix}.{name}" if prefix else name
        one, other = first.get(name), second.get(name)
        if isinstance(one, dict) and isinstance(other, dict):
            yield from _below(here, there, one, other, key)
        elif _with_absolute_paths(one) != _with_absolute_paths(other) or (name in first) != (name in second):
            sides = (_value(here, key, one, name in first), _value(there, key, other, name in second))
            yield KeyDifference(key, *sides)


def _value(side: Side, key: str, value: JsonValue, is_there: bool) -> SideValue:
    if isinstance(value, dict):  # the other side lacks this section, so leave out its defaults
        return SideValue(unlike_default(value, key) or value, str(side.origins.of(key) or ""), is_there)
    return SideValue(value, str(side.origins.by_key.get(key) or ""), is_there)


def _with_absolute_paths(value: JsonValue) -> JsonValue:
    """Return a value with its paths made absolute, as freezing does."""
    if isinstance(value, list):
        return [_with_absolute_paths(one) for one in value]
    if not isinstance(value, str) or not (value.startswith((".", "/", "~")) or os.path.exists(value)):
        return value
    path, colon, function = value.rpartition(":") if ".py:" in value else (value, "", "")
    return os.path.abspath(Path(path).expanduser()) + colon + function


def only_sections(tree: JsonTree, keys: Sequence[str]) -> JsonTree:
    """Return the part of a configuration at or below the dotted keys, in its own order; all if `keys` is empty."""
    if not keys:
        return tree
    kept: JsonTree = {}
    for name, value in tree.items():
        below = [key.partition(".")[2] for key in keys if key.partition(".")[0] == name]
        if "" in below:
            kept[name] = value
        elif below and isinstance(value, dict):
            kept[name] = only_sections(value, below)
    return kept
