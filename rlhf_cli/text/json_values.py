"""Define JSON values and write them without secrets."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from json.encoder import encode_basestring as quoted
from math import isfinite
from typing import TypeAlias, TypeVar

from rlhf_cli.text.redaction import HIDDEN, is_hidden_by_key, text_hider
from rlhf_cli.text.terminal_output import spelled_in_json

JsonValue: TypeAlias = "bool | int | float | str | list[JsonValue] | dict[str, JsonValue] | None"
"""A value in a JSON or YAML file, or in a composed configuration."""

JsonTree: TypeAlias = "dict[str, JsonValue]"
"""A whole file, or a section of it: key -> value."""

_Value = TypeVar("_Value")


def section(tree: JsonTree, name: str) -> JsonTree:
    """Return the section `name`, or an empty one if it is missing or not a mapping."""
    found = tree.get(name)
    return found if isinstance(found, dict) else {}


def finite_or_none(value: _Value) -> _Value | None:
    """Return None for a NaN or infinite float; any other value unchanged."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


_PIECES_A_WRITE = 1 << 14


def write_json(value: object, write: Callable[[str], object]) -> None:
    """Pass `value` to `write` as JSON, indented by two blanks; consume an iterator lazily, as a list.

    Secrets are hidden as by `redaction.redacted_tree`. NaN and infinity become null; other types that JSON does not
    have are written as their `str`. Raises TypeError for a key that is not a string, number, bool or None.
    """
    pieces: list[str] = []
    hide = text_hider()
    keys: dict[object, str] = {}

    def key_of(key: object) -> str:
        if not isinstance(key, str):
            return quoted(_of_number(key) or _refuse(key))
        return _quoted(hide(key))

    def put(node: object, line: str) -> None:
        if isinstance(node, str):
            pieces.append(_quoted(hide(node)))
        elif (number := _of_number(node)) is not None:
            pieces.append(number)
        elif isinstance(node, Mapping):
            before, below = "{" + line + "  ", line + "  "
            for key, item in node.items():
                if key.__class__ is not str:  # 1 and True are equal as dict keys, but differ in JSON
                    name = key_of(key)
                elif (name := keys.get(key, "")) == "":
                    name = keys[key] = key_of(key)
                pieces.append(f"{before}{name}: ")
                put(HIDDEN if is_hidden_by_key(key, item) else item, below)
                before = "," + below
            pieces.append(line + "}" if node else "{}")
        elif isinstance(node, list | tuple | Iterator):
            before, below = "[" + line + "  ", line + "  "
            for item in node:
                pieces.append(before)
                put(item, below)
                before = "," + below
                if len(pieces) > _PIECES_A_WRITE:
                    write("".join(pieces))
                    pieces.clear()
            pieces.append("[]" if before[0] == "[" else line + "]")
        else:
            pieces.append(_quoted(hide(str(node))))

    put(value, "\n")
    write("".join(pieces))


def _quoted(text: str) -> str:
    """Return a text as a JSON string that is safe to print to a terminal."""
    written = quoted(text)
    return written if written.isprintable() else spelled_in_json(written)


def _of_number(value: object) -> str | None:
    """Return a number, a bool or None as JSON; None for any other value."""
    if isinstance(value, float):
        return float.__repr__(value) if isfinite(value) else "null"
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    return int.__repr__(value) if isinstance(value, int) else None


def _refuse(key: object) -> str:
    raise TypeError(f"JSON has no such key: {key!r}")
