"""Say what a column holds, so that a file whose rows disagree is refused, and what Arrow calls it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias


class ColumnKind(StrEnum):
    """What a value without parts is; `MIXED` is a column of several kinds, or one that JSON does not have."""

    NULL = "null"
    BOOL = "true/false"
    INTEGER = "integer"
    NUMBER = "number"
    TEXT = "text"
    MIXED = "mixed"


@dataclass(frozen=True)
class ListKind:
    """A list whose items are of one kind."""

    item: Kind


@dataclass(frozen=True)
class RecordKind:
    """A JSON object with one kind per field; a field missing from a row is null there."""

    fields: Mapping[str, Kind]


Kind: TypeAlias = ColumnKind | ListKind | RecordKind

_SCALARS = {
    str: ColumnKind.TEXT,
    type(None): ColumnKind.NULL,
    bool: ColumnKind.BOOL,
    int: ColumnKind.INTEGER,
    float: ColumnKind.NUMBER,
}


def kind_of(value: object) -> Kind:
    """Return the kind of a JSON value."""
    if type(value) is int and not -(2**63) <= value < 2**63:
        return ColumnKind.MIXED  # Arrow's integers have 64 bits
    if (scalar := _SCALARS.get(type(value))) is not None:
        return scalar
    if isinstance(value, list):
        item: Kind = ColumnKind.NULL
        for element in value:
            item = merge(item, kind_of(element))
        return ListKind(item)
    if isinstance(value, dict):
        return RecordKind({key: kind_of(field) for key, field in value.items()})
    return ColumnKind.MIXED


def merge(first: Kind, second: Kind) -> Kind:
    """Return the kind of a column with both: null fits any, integer and number give number, other pairs are mixed."""
    if first == second or second == ColumnKind.NULL:
        return first
    if first == ColumnKind.NULL:
        return second
    if isinstance(first, ListKind) and isinstance(second, ListKind):
        return ListKind(merge(first.item, second.item))
    if isinstance(first, RecordKind) and isinstance(second, RecordKind):
        names = dict.fromkeys((*first.fields, *second.fields))
        null = ColumnKind.NULL
        return RecordKind({name: merge(first.fields.get(name, null), second.fields.get(name, null)) for name in names})
    is_number = {label(first), label(second)} == {ColumnKind.INTEGER, ColumnKind.NUMBER}
    return ColumnKind.NUMBER if is_number else ColumnKind.MIXED


def as_kind(value: object, kind: Kind, *, as_json: bool = False) -> object:
    """Return a value as its table stores it: all keys in records, floats beside fractions; `as_json`: mixed as JSON."""
    if isinstance(kind, RecordKind) and isinstance(value, Mapping):
        return {name: as_kind(value.get(name), field, as_json=as_json) for name, field in kind.fields.items()}
    if isinstance(kind, ListKind) and isinstance(value, list):
        return [as_kind(item, kind.item, as_json=as_json) for item in value]
    if kind == ColumnKind.MIXED and as_json and value is not None:
        return json.dumps(value)
    return float(value) if kind == ColumnKind.NUMBER and isinstance(value, int) else value


def label(kind: Kind) -> str:
    """Return a word for messages: `text`, `integer`, `list`, `object` ..."""
    if isinstance(kind, ColumnKind):
        return kind
    return "list" if isinstance(kind, ListKind) else "object"


ARROW_NAMES = {
    ColumnKind.NULL: "null",
    ColumnKind.BOOL: "bool",
    ColumnKind.INTEGER: "int64",
    ColumnKind.NUMBER: "float64",
    ColumnKind.TEXT: "string",
}
