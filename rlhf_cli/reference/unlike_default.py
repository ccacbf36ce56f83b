"""Find the values of a configuration that differ from the defaults."""

from __future__ import annotations

from functools import cache

from rlhf_cli.config.compose import compose
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.json_values import JsonTree, JsonValue
from rlhf_cli.reference.function_source import NO_DEFAULT
from rlhf_cli.reference.key_reference import key_reference

_ABSENT = object()


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


_WHOLE = frozenset({"model.build"})
"""Sections whose parts have no meaning without the rest."""


def _default_of(key: str) -> object:
    node: JsonValue = _without_a_word()
    for part in key.split("."):
        if not isinstance(node, dict) or part not in node:
            return _schema_default(key)
        node = node[part]
    return node


def _schema_default(key: str) -> object:
    reference = key_reference(key)
    if reference is None or reference.default is NO_DEFAULT:
        return _ABSENT
    return reference.default


@cache
def _without_a_word() -> JsonTree:
    """Return the configuration without any settings: all sections, filled with the schema's defaults."""
    return Experiment.model_validate(compose([]).tree).model_dump(mode="json")
