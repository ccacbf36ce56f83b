"""The schema for editors says what each key means, and is still the same schema."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from jsonschema import Draft202012Validator

from rlhf_cli.config.json_schema import configuration_schema
from rlhf_cli.project.reference.reference_json import described
from rlhf_cli.text.json_values import JsonTree, JsonValue


def undescribed(schema: JsonTree) -> Iterator[str]:
    """Yield every key in the schema that has no description, by its definition."""
    definitions = schema.get("$defs", {})
    assert isinstance(definitions, dict)
    for name, one in {"": schema, **definitions}.items():
        assert isinstance(one, dict)
        properties = one.get("properties", {})
        assert isinstance(properties, dict)
        for key, value in properties.items():
            assert isinstance(value, dict)
            if not value.get("description"):
                yield f"{name}.{key}"


def without_descriptions(node: JsonValue) -> JsonValue:
    if isinstance(node, list):
        return [without_descriptions(one) for one in node]
    if not isinstance(node, dict):
        return node
    return {
        key: without_descriptions(value)
        for key, value in node.items()
        if key != "description" or isinstance(value, dict)
    }


def test_every_key_of_an_experiment_is_described() -> None:
    schema = described(configuration_schema("exp"), "exp")
    assert list(undescribed(schema)) == [".defaults"]
    args = schema["$defs"]["Trainer"]["properties"]["args"]["properties"]  # type: ignore[call-overload,index]
    assert [name for name, one in args.items() if not one.get("description")] == []  # type: ignore[union-attr]


@pytest.mark.parametrize("group", ["exp", "reward"])
def test_nothing_else_is_changed(group: str) -> None:
    schema = described(configuration_schema(group), group)
    Draft202012Validator.check_schema(schema)
    assert without_descriptions(schema) == without_descriptions(configuration_schema(group))
