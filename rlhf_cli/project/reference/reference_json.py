"""Make JSON of what is known, and describe the JSON Schema."""

from __future__ import annotations

from collections.abc import Iterable

from rlhf_cli.config.schema.trainer_sections import PpoArgs
from rlhf_cli.project.reference.function_source import NO_DEFAULT, sentences_about
from rlhf_cli.project.reference.key_reference import KeyReference, key_reference
from rlhf_cli.project.reference.reward_reference import ExampleRow, RewardReference
from rlhf_cli.project.reference.trainer_reference import TrainerArgument, TrainerReference, field_texts
from rlhf_cli.tables.trl_trainers import TRAINERS
from rlhf_cli.text.json_values import JsonTree, JsonValue


def reward_json(reward: RewardReference) -> JsonTree:
    """Return a reward; an argument without `default` is required."""
    source, example = reward.source, reward.example
    return {
        "name": reward.option,
        "fn": reward.fn,
        "caption": reward.caption,
        "summary": source.docstring.summary,
        "text": reward.text,
        "arguments": [
            {
                "name": one.name,
                "type": one.type,
                **_default(one.default),
                "choices": list(one.choices),
                "text": one.text,
                "shipped": _plain(one.shipped),
            }
            for one in reward.arguments
        ],
        "columns": [{"name": one.name, "required": one.is_required, "text": one.text} for one in reward.columns],
        "example": None
        if example is None
        else {"prompt": example.prompt, "args": dict(example.args), "rows": [_row(row) for row in example.rows]},
        "yaml": reward.yaml,
        "override": reward.on_command_line,
        "conf_file": str(reward.conf_file) if reward.conf_file else None,
        "file": str(source.file),
        "line": source.line,
    }


def trainer_json(trainer: TrainerReference, arguments: Iterable[TrainerArgument]) -> JsonTree:
    """Return a trainer with the given arguments."""
    return {
        "name": trainer.option,
        "caption": trainer.caption,
        "trl": trainer.trl,
        "has_critic": trainer.has_critic,
        "conf_file": str(trainer.conf_file),
        "arguments": [
            {
                "name": one.name,
                "key": None if one.home else one.key,
                "set_by": one.home,
                "type": one.type,
                "default": _plain(one.default),
                "choices": list(one.choices),
                "text": one.text,
                "config_class": one.config_class,
                **({} if one.origin is None else {"here": one.ours, "origin": str(one.origin)}),
            }
            for one in arguments
        ],
    }


def key_json(key: KeyReference) -> JsonTree:
    """Return a key of the configuration; one without `default` is required."""
    return {
        "key": key.key,
        "type": key.type,
        **_default(key.default),
        "values": list(key.values),
        "text": key.text,
        "holds": list(key.holds),
    }


def _row(row: ExampleRow) -> JsonTree:
    return {
        "completion": row.completion,
        "columns": dict(row.columns),
        **({} if row.reply is None else {"reply": row.reply}),
        **({} if row.num_tokens is None else {"num_tokens": row.num_tokens}),
        "score": _plain(row.score),
    }


def _default(value: object) -> JsonTree:
    return {} if value is NO_DEFAULT else {"default": _plain(value)}


def _plain(value: object) -> JsonValue:
    """Return a value as JSON, or as text if JSON does not have its type."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, dict):
        return {str(name): _plain(one) for name, one in value.items()}
    return str(value)


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
