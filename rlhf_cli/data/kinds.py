"""Says what a column holds, learnt from its values: enough to notice a change of mind, and to type a table.

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
    """A JSON object whose fields each have a kind; a field that some rows lack is null there."""

    fields: Mapping[str, Kind]


Kind = str | ListOf | Record


def kind_of(value: object) -> Kind:
    """Return the kind of a value, as JSON gives it."""
    if isinstance(value, str):
        return TEXT
    if value is None:
        return NULL
    if isinstance(value, bool):  # before int, of which bool is a subclass
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
    """Return the kind of a column that holds both.

    Null joins any, integer and number make number, lists and records are merged inside; all else is `mixed`.
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
