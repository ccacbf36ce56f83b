"""Make JSON of what is known, describe the tasks of reasoning-gym and the JSON Schema."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from pydantic import BaseModel

from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.config.schema.section import Section
from rlhf_cli.config.schema.trainer_sections import PpoArgs, Trainer
from rlhf_cli.data.worlds.reasoning_gym import list_tasks
from rlhf_cli.errors import DataError
from rlhf_cli.project.reference.function_source import NO_DEFAULT, sentences_about
from rlhf_cli.project.reference.key_reference import KeyReference, key_text
from rlhf_cli.project.reference.reward_reference import RewardReference
from rlhf_cli.project.reference.trainer_reference import TrainerReference, field_texts
from rlhf_cli.tables.trl_trainers import TRAINERS
from rlhf_cli.text.json_values import JsonTree, JsonValue


def as_tree(value: RewardReference | TrainerReference | KeyReference) -> dict[str, Any]:
    """Return a dataclass as JSON: its fields, without those that are NO_DEFAULT."""
    return asdict(value, dict_factory=lambda pairs: {name: one for name, one in pairs if one is not NO_DEFAULT})


def described_tasks() -> tuple[list[dict[str, Any]], str]:
    """Return name, example and arguments of every task, and '', or no task and what is missing."""
    try:
        return list_tasks(), ""
    except DataError as error:
        return [], f"the tasks cannot be listed: {error.what} (try: {error.hint})"


def described(schema: JsonTree, group: str) -> JsonTree:
    """Return the schema of a group's files with a description for every known key."""
    sections = {section.__name__: section for section in _subclasses(Section)}
    of_group: list[type[BaseModel]] = [sections.get(group.title(), Experiment), Experiment]
    found: JsonTree = {**schema, "properties": _of_keys(schema.get("properties"), of_group)}
    if isinstance(definitions := schema.get("$defs"), dict):
        found["$defs"] = {
            name: {**definition, "properties": _of_keys(definition.get("properties"), [sections[name]])}
            if isinstance(definition, dict) and "properties" in definition
            else definition
            for name, definition in definitions.items()
        }
    return found


def _subclasses(section: type[Section]) -> Iterable[type[Section]]:
    for below in section.__subclasses__():
        yield below
        yield from _subclasses(below)


def _of_keys(properties: JsonValue, sections: Iterable[type[BaseModel]]) -> JsonValue:
    """Return the properties with the text of the first section that explains each."""
    kept: JsonTree = {}
    for name, value in properties.items() if isinstance(properties, dict) else ():
        text = next((text for section in sections if (text := key_text(section, name))), "")
        if name == "args" and Trainer in sections and isinstance(value, dict):
            value = {**value, "properties": _of_arguments(value.get("properties"))}
        kept[name] = {"description": text, **value} if isinstance(value, dict) and text else value
    return kept


def _of_arguments(properties: JsonValue) -> JsonTree:
    """Return the schema of `trainer.args` with TRL's help, from the first trainer that has the argument."""
    texts = {name: sentences_about(PpoArgs.__doc__, name) for name in PpoArgs.model_fields}
    for row in TRAINERS.values():
        for name, (_, text) in field_texts(row.config_class).items():
            texts.setdefault(name, text)
    kept = properties if isinstance(properties, dict) else {}
    return {name: {"description": texts[name], **value} for name, value in kept.items() if isinstance(value, dict)}
