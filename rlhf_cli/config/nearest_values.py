"""Suggests a value for one that a key rejects: a typo in a word, a number as text, a number with a unit, bounds in the
wrong order. For a negative number it suggests the key's default.

Every suggestion has been validated against the key. A sign is never flipped: -1 was not meant as 1. If no case applies,
it suggests no value.
"""

from __future__ import annotations

import re
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from rlhf_cli.config.schema.keys import section_of
from rlhf_cli.suggest import nearest
from rlhf_cli.tables.former_names import SPOKEN_VALUES

_TRUE, _FALSE = ("yes", "on", "true", "y", "1"), ("no", "off", "false", "n", "0")
_WITH_UNIT = re.compile(r"^\s*(?P<number>[-+]?[\d_]*[.,]?\d+(?:e[-+]?\d+)?)\s*(?P<unit>[a-z%]*)\s*$", re.IGNORECASE)
_SECONDS = {
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1.0),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hr", "hour", "hours"), 3600.0),
    **dict.fromkeys(("d", "day", "days"), 86400.0),
    "ms": 0.001,
}
_GIGABYTES = {**dict.fromkeys(("g", "gb", "gib"), 1.0), **dict.fromkeys(("m", "mb", "mib"), 1 / 1024), "tb": 1024.0}
_COUNTS = {"": 1.0, "k": 1e3, "m": 1e6, "%": 0.01}

Takes = Callable[[object], bool]
"""Returns whether a key accepts a value."""


def meant_value(key: str, field: FieldInfo, value: object) -> str | None:
    """Return `key=value` with the value most likely meant by one that a key of our schema rejects, or None."""
    adapter = _judge(field)
    return first_taken(
        key,
        value,
        lambda one: _is_valid(adapter, one),
        choices=_words(field.annotation),
        default=field.default if isinstance(value, int | float) and value < 0 else None,
    )


def first_taken(
    key: str, value: object, takes: Takes, *, choices: tuple[str, ...] = (), default: object = None
) -> str | None:
    """Return `key=value` with the first candidate that `takes` accepts, or None.

    `choices` are the words that the key accepts. `default` is suggested last, if it is a number.
    """
    is_number = isinstance(default, int | float) and not isinstance(default, bool)
    for meant in (*_candidates(key, value, choices), *([default] if is_number else [])):
        is_same = meant == value and type(meant) is type(value)
        if meant is not None and not is_same and takes(meant):
            return f"{key}={_shown(meant)}"
    return None


def _candidates(key: str, value: object, choices: tuple[str, ...]) -> Iterator[object]:
    name = key.rpartition(".")[2]
    if isinstance(value, str):
        word = value.strip().lower()
        spoken = SPOKEN_VALUES.get(name, {}).get(word)
        if spoken is not None:
            yield spoken
            yield from _numbers(name, spoken)
        close = nearest(value, choices)
        if close is not None:
            yield close
        yield from _switches(word)
        yield from _numbers(name, word)
        yield [value]
    elif isinstance(value, bool):
        yield SPOKEN_VALUES.get(name, {}).get(str(value).lower())
        yield "off" if not value else "auto"
    elif isinstance(value, int | float):
        if not abs(value) < 1e18:  # comparisons with NaN are false
            return
        whole = int(value)
        if value == whole:
            yield whole
            yield from _switches(str(whole))
        yield from (SPOKEN_VALUES.get(name, {}).get(str(whole)), whole if value > 0 else None)
        if 1 < value <= 100:
            yield value / 100
        if value == 0:
            yield 1
        yield [value]
    elif isinstance(value, list):
        yield value[::-1]


def _switches(word: str) -> Iterator[object]:
    if word in _TRUE:
        yield True
    elif word in _FALSE:
        yield False


def _numbers(name: str, text: str) -> Iterator[object]:
    match = _WITH_UNIT.match(text)
    if match is None:
        return
    unit = match["unit"].lower()
    units = _SECONDS if name.endswith("_s") else _GIGABYTES if name.endswith("_gb") else _COUNTS
    factor = units.get(unit, _COUNTS.get(unit) if unit in ("", "%") else None)
    if factor is None:
        return
    number = float(match["number"].replace("_", "").replace(",", ".")) * factor
    if number == int(number):
        yield int(number)
    yield number


def meant_inside(key: str, kind: type[BaseModel], value: object, *, is_there: bool = False) -> str | None:
    """Return `key=value` with the first key of a section that accepts a value given for the whole section.

    `is_there` says that the files have such a section, to which the key is added. Where they do not, and the section
    needs more than that key, `...` stands for the rest.
    """
    if value is True and _is_valid(TypeAdapter(kind), {}):
        return f"'{key}={{}}'"
    for name, field in kind.model_fields.items():
        if _is_valid(_judge(field), value) and value is not None:
            given = field.alias or name
            is_enough = is_there or _is_valid(TypeAdapter(kind), {given: value})
            return f"{key}.{given}={_shown(value)}" if is_enough else f"'{key}={{{given}: {_shown(value)}, ...}}'"
    return None


def _judge(field: FieldInfo) -> TypeAdapter[object]:
    """Return an adapter that validates a value for a field, as strictly as its section does."""
    kind: Any = Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation
    # pydantic rejects a config if the type is a section, which has its own.
    return TypeAdapter(kind, config=ConfigDict(strict=True) if section_of(field.annotation) is None else None)


def _words(annotation: object) -> tuple[str, ...]:
    """Return the words that an annotation lists, also in unions and inside lists."""
    if typing.get_origin(annotation) is typing.Literal:
        return tuple(word for word in typing.get_args(annotation) if isinstance(word, str))
    return tuple(word for arm in typing.get_args(annotation) for word in _words(arm))


def _is_valid(adapter: TypeAdapter[object], value: object) -> bool:
    try:
        adapter.validate_python(value)
    except ValidationError:
        return False
    return True


def _shown(value: object) -> str:
    """Return a value as typed on a command line."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, float):
        return f"{value:.12g}"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{name}:{_shown(inner)}" for name, inner in value.items()) + "}"
    return "[" + ",".join(_shown(one) for one in value) + "]" if isinstance(value, list) else str(value)
