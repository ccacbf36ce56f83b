"""Define JSON values and write them without secrets."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias, TypeVar

from rlhf_cli.text.redaction import CONTROL, redacted_tree

JsonValue: TypeAlias = "bool | int | float | str | list[JsonValue] | dict[str, JsonValue] | None"
"""A value in a JSON or YAML file, or in a composed configuration."""

JsonTree: TypeAlias = "dict[str, JsonValue]"
"""A whole file, or a section of it: key -> value."""

_Value = TypeVar("_Value")


def section(tree: JsonTree, name: str) -> JsonTree:
    """Return the section `name`, or an empty one if it is missing or not a mapping."""
    found = tree.get(name)
    return found if isinstance(found, dict) else {}


def leaves(node: object, prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yield (dotted key, value) of every entry of a tree, branches included; a list's keys are 0, 1, ..."""
    entries = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for name, value in entries:
        key = f"{prefix}.{name}" if prefix else str(name)
        yield key, value
        yield from leaves(value, key)


def finite_or_none(value: _Value) -> _Value | None:
    """Return None for a NaN or infinite float; any other value unchanged."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def is_none(value: object) -> bool:
    """Return whether a value is None. Such values are left out of a file."""
    return value is None


def without_images(value: object) -> Any:  # noqa: ANN401 - of the type of the value
    """Return a value for a file of text: an image becomes its file's name or, as it is stored, a digest without one."""
    if isinstance(value, Mapping):
        if value.keys() == {"bytes", "path"}:  # as `datasets` stores an image
            return value["path"] or hashlib.sha256(value["bytes"] or b"").hexdigest()
        return {key: without_images(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_images(item) for item in value]
    return getattr(value, "filename", "") if hasattr(value, "tobitmap") else value


def write_json(value: object, write: Callable[[str], object]) -> None:
    """Pass `value` to `write` as JSON, indented by two blanks and safe to print; write an iterator as a list.

    Secrets are hidden as by `redaction.redacted_tree`. NaN and infinity become null; other types that JSON does not
    have are written as their `str`. Raise TypeError for a key that is not a string, number, bool or None.
    """
    tree = redacted_tree(_plain(value))
    try:
        import orjson

        text = orjson.dumps(tree, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS).decode()
    except TypeError:  # a whole number of more than 64 bits, half of a surrogate pair, or no key for JSON
        text = json.dumps(tree, indent=2, ensure_ascii=False)
    if not text.isascii() or "\x7f" in text:  # JSON has escaped the others; the pattern takes twenty times as long
        text = CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
    write(text)


def _plain(node: object) -> object:
    """Return a value with the types of JSON."""
    if isinstance(node, Mapping):
        return {key: _plain(item) for key, item in node.items()}
    if isinstance(node, list | tuple | Iterator):
        return [_plain(item) for item in node]
    return finite_or_none(node) if node is None or isinstance(node, str | int | float) else str(node)
