"""Describe the configuration as JSON Schema, so that editors complete and check YAML as it is written.

It is built from the classes that validate. It accepts any single file: no key is required, because other files may set
it, and any value may be a reference, `${...}`. Rules that involve several keys are left to `rlhf check`.
"""

from __future__ import annotations

from functools import cache
from typing import cast

from rlhf_cli.config import trl_args
from rlhf_cli.config.rules.trainer_rules import own_fields
from rlhf_cli.config.schema.experiment import Experiment, section_at
from rlhf_cli.config.schema.trainer_sections import PpoArgs
from rlhf_cli.tables.trl_trainers import TRAINERS
from rlhf_cli.text.json_values import JsonTree, JsonValue

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_WHAT_IT_KNOWS = "Keys, types and values; `rlhf check` also checks rules between several keys."
_REFERENCE: JsonTree = {"type": "string", "pattern": r"\$\{|^\?\?\?$"}
_SWITCH: JsonTree = {"enum": [True, False, "on", "off"]}


@cache
def configuration_schema(group: str = "exp") -> JsonTree:
    """Return the schema of a file of a group of conf/: a section of this name, else the whole configuration."""
    path = ["rewards", "NAME"] if group == "reward" else group.split("/")
    section = (None if group == "trainer" else section_at(path)) or Experiment
    schema = cast(JsonTree, _as_in_a_file(section.model_json_schema()))
    properties = _at(schema, "properties")
    if section is Experiment:
        _at(schema, "$defs", "Trainer", "properties")["args"] = _arguments()
        own: JsonTree = {key: {"anyOf": [trl_args.json_schema(one), _REFERENCE]} for key, one in own_fields().items()}
        _at(schema, "$defs", "Lora", "properties").update(own)
        _at(schema, "$defs", "Lora")["additionalProperties"] = False
        warn = _at(schema, "$defs", "Warn", "properties")
        warn |= {kind: {**cast(JsonTree, may_be), "anyOf": [_SWITCH]} for kind, may_be in warn.items()}
        properties["warn"] = {"anyOf": [properties["warn"], _SWITCH]}
    if group == "trainer":
        # Such a file is the section alone or, with `# @package _global_`, sets keys of other sections, too.
        properties |= _at(schema, "$defs", "Trainer", "properties")
    properties["defaults"] = {"type": "array", "items": {"type": ["string", "object"]}}
    where = "an experiment" if group == "exp" else f"a file of conf/{group}"
    return {"$schema": DIALECT, **schema, "title": f"rlhf: {where}", "description": _WHAT_IT_KNOWS}


def _at(tree: JsonTree, *path: str) -> JsonTree:
    for part in path:
        tree = cast(JsonTree, tree[part])
    return tree


def _as_in_a_file(node: JsonValue) -> JsonValue:
    """Return a schema in which no key is required and every value may be a reference."""
    if isinstance(node, list):
        return [_as_in_a_file(item) for item in node]
    if not isinstance(node, dict):
        return node
    found = {key: _as_in_a_file(item) for key, item in node.items() if key != "required"}
    values = found.get("enum", [found["const"]] if "const" in found else [])
    if isinstance(values, list) and "off" in values:
        # YAML 1.1, which Hydra reads, parses a bare off as false.
        found = {key: item for key, item in found.items() if key not in ("enum", "const", "type")}
        found["enum"] = [*values, False]
    if isinstance(properties := found.get("properties"), dict):
        found["properties"] = {name: _or_a_reference(cast(JsonTree, value)) for name, value in properties.items()}
    return found


def _or_a_reference(schema: JsonTree) -> JsonTree:
    """Return the schema of a value or a reference; a section stays, because editors explain errors in `anyOf` badly."""
    if "$ref" in schema or schema.get("type") == "object":
        return schema
    kept: JsonTree = {name: schema[name] for name in ("description", "default", "title") if name in schema}
    rest = {name: value for name, value in schema.items() if name not in kept}
    arms = rest["anyOf"] if set(rest) == {"anyOf"} else [rest]
    return {**kept, "anyOf": [*(arms if isinstance(arms, list) else [arms]), _REFERENCE]}


@cache
def _arguments() -> JsonTree:
    """Return the schema of `trainer.args`: the arguments of any trainer, except those set in our own sections."""
    by_name: dict[str, list[JsonValue]] = {}
    for row in TRAINERS.values():
        for name, field in trl_args.fields_of(row.name).items():
            schema = trl_args.json_schema(field)
            if name not in trl_args.RESERVED_ARGS and schema not in by_name.get(name, []):
                by_name.setdefault(name, []).append(schema)
    for name, field_of_ppo in _at(PpoArgs.model_json_schema(), "properties").items():
        by_name.setdefault(name, []).append(field_of_ppo)
    arms: JsonTree = {name: {"anyOf": [*schemas, _REFERENCE]} for name, schemas in sorted(by_name.items())}
    return {"type": "object", "properties": arms, "additionalProperties": False}
