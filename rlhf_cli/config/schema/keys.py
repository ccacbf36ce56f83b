"""Finds what the schema says of a dotted key: the field it is, and the keys that are valid beside it."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator, Sequence
from typing import TypeGuard

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from rlhf_cli.config.schema.experiment import Experiment


def leaves(node: object, prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yield (dotted key, value) of every entry of a composed tree, branches included; a list's keys are 0, 1, ..."""
    entries = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for name, value in entries:
        key = f"{prefix}.{name}" if prefix else str(name)
        yield key, value
        yield from leaves(value, key)


def valid_keys(path: Sequence[int | str]) -> list[str]:
    """Return the keys of the section that a path leads to; none where it leads to no section."""
    section = section_at(path)
    return list(_keys(section)) if section is not None else []


def section_at(path: Sequence[int | str]) -> type[BaseModel] | None:
    """Return the section that a path leads to, None where it leads to a value, a map of the user's or nowhere."""
    section = _arm(_kind_at(path), "")
    return section if _is_section(section) else None


def field_at(path: Sequence[int | str]) -> FieldInfo | None:
    """Return the field that a path leads to, None where the schema has none there (the arguments of a function)."""
    section = _arm(_kind_at(path[:-1]), path[-1])
    return section.model_fields.get(str(path[-1])) if _is_section(section) else None


def section_of(annotation: object) -> type[BaseModel] | None:
    """Return the section that an annotation stands for, optional or not; None where it stands for none."""
    arm = _arm(annotation, "")
    return arm if _is_section(arm) else None


def _kind_at(path: Sequence[int | str]) -> object:
    """Return the annotation that a path leads to, `object` where it leads out of the schema."""
    kind: object = Experiment
    for part in path:
        kind = _arm(kind, part)
        if _is_section(kind):
            field = kind.model_fields.get(str(part))
            kind = field.annotation if field is not None else object
        elif typing.get_origin(kind) is dict:
            kind = typing.get_args(kind)[1]
        elif typing.get_origin(kind) in (list, tuple):
            kind = typing.get_args(kind)[0]
        else:
            kind = object
    return kind


def _arm(annotation: object, part: int | str) -> object:
    """Return what of an optional or union annotation has an entry of that name: the list for 0, else the section."""
    if typing.get_origin(annotation) is typing.Annotated:
        return _arm(typing.get_args(annotation)[0], part)
    if typing.get_origin(annotation) not in (typing.Union, types.UnionType):
        return annotation
    arms = [_arm(arm, part) for arm in typing.get_args(annotation) if arm is not type(None)]
    by_number = [arm for arm in arms if typing.get_origin(arm) in (list, tuple)]
    by_name = [arm for arm in arms if typing.get_origin(arm) is dict or _is_section(arm)]
    # A name that is no key of a section is one of the user's, where there may be such.
    by_name.sort(key=lambda arm: _is_section(arm) and str(part) not in _keys(arm))
    wanted = by_number + by_name if str(part).isdigit() else by_name + by_number
    return (wanted or arms)[0]


def _keys(section: type[BaseModel]) -> dict[str, None]:
    return dict.fromkeys(field.alias or name for name, field in section.model_fields.items())


def _is_section(kind: object) -> TypeGuard[type[BaseModel]]:
    return isinstance(kind, type) and issubclass(kind, BaseModel)
