"""Infer the type of a column from its values, to detect mixed types and to build a table schema.

A kind is `null`, `true/false`, `integer`, `number` or `text`, a list of one kind, a record of named kinds, or `mixed`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

NULL, BOOL, INTEGER, NUMBER, TEXT, MIXED = "null", "true/false", "integer", "number", "text", "mixed"


@dataclass(frozen=True)
class ListOf:
    """A list whose items are of one kind."""

    item: Kind


@dataclass(frozen=True)
class Record:
    """A JSON object with one kind per field; a field missing from a row is null there."""

    fields: Mapping[str, Kind]


Kind = str | ListOf | Record


def kind_of(value: object) -> Kind:
    """Return the kind of a JSON value."""
    if isinstance(value, str):
        return TEXT
    if value is None:
        return NULL
    if isinstance(value, bool):  # before int, because bool is a subclass of int
        return BOOL
    if isinstance(value, int):
        return INTEGER
    if isinstance(value, float):
        return NUMBER
    if isinstance(value, list):
        item: Kind = NULL
        for element in value:
            item = merge(item, kind_of(element))
        return ListOf(item)
    if isinstance(value, dict):
        return Record({key: kind_of(field) for key, field in value.items()})
    return MIXED


def merge(first: Kind, second: Kind) -> Kind:
    """Return the kind of a column that holds both kinds.

    Null merges with any kind, integer and number give number, lists and records are merged recursively; all other pairs
    are `mixed`.
    """
    if first == second or second == NULL:
        return first
    if first == NULL:
        return second
    if {label(first), label(second)} == {INTEGER, NUMBER}:
        return NUMBER
    if isinstance(first, ListOf) and isinstance(second, ListOf):
        return ListOf(merge(first.item, second.item))
    if isinstance(first, Record) and isinstance(second, Record):
        names = [*first.fields, *(name for name in second.fields if name not in first.fields)]
        return Record({name: merge(first.fields.get(name, NULL), second.fields.get(name, NULL)) for name in names})
    return MIXED


def label(kind: Kind) -> str:
    """Return a word for messages: `text`, `integer`, `list`, `object` ..."""
    if isinstance(kind, ListOf):
        return "list"
    if isinstance(kind, Record):
        return "object"
    return kind
