"""Add a description of each key to the configuration's JSON Schema, for editors to show."""

from __future__ import annotations

from rlhf_cli.config.schema.ppo_sections import PpoArgs
from rlhf_cli.json_values import JsonTree, JsonValue
from rlhf_cli.reference.docstring import sentences_about
from rlhf_cli.reference.key_reference import key_reference
from rlhf_cli.reference.trainer_reference import field_texts
from rlhf_cli.tables.trl_trainers import TRAINERS

_DESCRIPTION = "description"
_PREFIX_OF_GROUP = {
    "reward": "rewards.NAME.",
    "data": "data.",
    "model": "model.",
    "launch": "launch.",
    "track": "track.",
}
_PREFIX_OF_GROUP |= {"truncation": "truncation.", "sweep": "sweep."}
"""Maps a group to the section that its files describe; files of other groups are whole configurations."""
_INHERITED = {"Data": "data.", "Eval": "data.eval.", "Warn": "warn.", "Run": "run."}
"""Maps definitions whose docstring does not name all of their keys to their sections."""


def described(schema: JsonTree, group: str) -> JsonTree:
    """Return the schema of a group's files with a description for every known key."""
    definitions = schema.get("$defs")
    found: JsonTree = {**schema, "properties": _of_keys(schema.get("properties"), _PREFIX_OF_GROUP.get(group, ""))}
    if isinstance(definitions, dict):
        found["$defs"] = {name: _of_definition(name, one) for name, one in definitions.items()}
    return found


def _of_definition(name: str, definition: JsonValue) -> JsonValue:
    if not isinstance(definition, dict):
        return definition
    properties = definition.get("properties")
    if name in _INHERITED:
        return {**definition, "properties": _of_keys(properties, _INHERITED[name])}
    text = str(definition.get(_DESCRIPTION, ""))
    kept = properties if isinstance(properties, dict) else {}
    new = {key: _with(value, sentences_about(text, key)) for key, value in kept.items()}
    if name == "Trainer" and isinstance(args := new.get("args"), dict):
        new["args"] = _of_arguments(args)
    return {**definition, "properties": new} if kept else definition


def _of_keys(properties: JsonValue, prefix: str) -> JsonValue:
    if not isinstance(properties, dict):
        return properties
    known = {name: key_reference(f"{prefix}{name}") for name in properties}
    return {name: _with(value, one.text if (one := known[name]) else "") for name, value in properties.items()}


def _of_arguments(args: JsonTree) -> JsonTree:
    """Return the schema of `trainer.args` with TRL's help, from the first trainer that has the argument."""
    texts = {name: sentences_about(PpoArgs.__doc__, name) for name in PpoArgs.model_fields}
    for row in TRAINERS.values():
        for name, (_, text) in field_texts(row.config_class).items():
            texts.setdefault(name, text)
    properties = args.get("properties")
    kept = properties if isinstance(properties, dict) else {}
    return {**args, "properties": {name: _with(value, texts.get(name, "")) for name, value in kept.items()}}


def _with(value: JsonValue, text: str) -> JsonValue:
    return {_DESCRIPTION: text, **value} if isinstance(value, dict) and text else value
