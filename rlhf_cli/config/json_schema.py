"""Describes the configuration as JSON Schema, so that an editor completes and checks YAML while it is written.

It comes from what judges: the sections of schema/, and of `trainer.args` the fields of all of TRL's config classes. It
accepts what a file may say (nothing is required, for the rest comes from other files; any value may be a reference,
`${...}`) and knows no rule about several keys: those are for `rlhf check`.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from pydantic import BaseModel, TypeAdapter

from rlhf_cli.config import trl_args
from rlhf_cli.config.owned import OWNED
from rlhf_cli.config.schema.data_section import Data
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.config.schema.launch_section import Launch
from rlhf_cli.config.schema.model_section import Model
from rlhf_cli.config.schema.ppo_sections import PpoArgs
from rlhf_cli.config.schema.reward_section import Reward
from rlhf_cli.config.schema.run_sections import Track
from rlhf_cli.config.schema.sweep_section import Sweep
from rlhf_cli.config.schema.truncation_section import Truncation
from rlhf_cli.json_values import JsonTree
from rlhf_cli.tables.trl_trainers import TRAINERS

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_SECTION_OF_GROUP: dict[str, type[BaseModel]] = {
    "data": Data,
    "model": Model,
    "reward": Reward,
    "launch": Launch,
    "track": Track,
    "truncation": Truncation,
    "sweep": Sweep,
}
"""Group -> the section that its files are. The files of all other groups begin with `# @package _global_`."""

_WHAT_IT_KNOWS = "Keys, types and values; what several keys have to do with one another `rlhf check` knows."
_REFERENCE = {"type": "string", "pattern": r"\$\{|^\?\?\?$"}
_SWITCH = {"enum": [True, False, "on", "off"]}


@cache
def configuration_schema(group: str = "exp") -> JsonTree:
    """Return the schema of a file of a group of conf/. That of `exp` is the whole configuration."""
    section = _SECTION_OF_GROUP.get(group, Experiment)
    schema: Any = _as_in_a_file(section.model_json_schema())
    if section is Experiment:
        schema["$defs"]["Trainer"]["properties"]["args"] = _arguments()
        warn = schema["$defs"]["Warn"]["properties"]
        warn |= {kind: {**may_be, "anyOf": [_SWITCH]} for kind, may_be in warn.items()}
        schema["properties"]["warn"] = {"anyOf": [schema["properties"]["warn"], _SWITCH]}
    if group == "trainer":
        # Such a file is the section alone, or with `# @package _global_` says something of other sections, too.
        schema["properties"] |= schema["$defs"]["Trainer"]["properties"]
    schema["properties"]["defaults"] = {"type": "array", "items": {"type": ["string", "object"]}}
    where = "an experiment" if group == "exp" else f"a file of conf/{group}"
    return {"$schema": DIALECT, **schema, "title": f"rlhf: {where}", "description": _WHAT_IT_KNOWS}


def _as_in_a_file(node: object) -> Any:
    """Return a schema in which nothing is required and every value may be a reference."""
    if isinstance(node, list):
        return [_as_in_a_file(item) for item in node]
    if not isinstance(node, dict):
        return node
    found = {key: _as_in_a_file(item) for key, item in node.items() if key != "required"}
    if "off" in found.get("enum", ()) or found.get("const") == "off":
        # YAML 1.1, which Hydra reads, makes false of a bare off.
        values = found.pop("enum", ["off"])
        found.pop("const", None)
        found.pop("type", None)
        found["enum"] = [*values, False]
    properties = found.get("properties")
    if isinstance(properties, dict):
        found["properties"] = {name: _or_a_reference(value) for name, value in properties.items()}
    return found


def _or_a_reference(schema: Any) -> JsonTree:
    """Return the schema of a key's value, or a reference to another key; what it says beside its type stays outside.

    A section is left as it is: an editor says better what is wrong below it where there is one thing that it may be.
    """
    if "$ref" in schema or schema.get("type") == "object":
        return dict(schema)
    kept = {name: schema[name] for name in ("description", "default", "title") if name in schema}
    rest = {name: value for name, value in schema.items() if name not in kept}
    arms = rest["anyOf"] if set(rest) == {"anyOf"} else [rest]
    return {**kept, "anyOf": [*arms, _REFERENCE]}


@cache
def _arguments() -> JsonTree:
    """Return the schema of `trainer.args`: what any trainer takes, but for what has a home of ours."""
    by_name: dict[str, list[JsonTree]] = {}
    for row in TRAINERS.values():
        for name, field in trl_args.config_fields(row.config_class).items():
            if name not in OWNED and (one := trl_args.json_schema(field)) not in by_name.setdefault(name, []):
                by_name[name].append(one)
    for name, one in TypeAdapter(PpoArgs).json_schema()["properties"].items():
        by_name.setdefault(name, []).append(one)
    arms = {name: {"anyOf": [*schemas, _REFERENCE]} for name, schemas in sorted(by_name.items())}
    return {"type": "object", "properties": arms, "additionalProperties": False}
