"""Checks every number of a composed tree: it must be finite, and learning rates must not be negative.

The check walks the composed tree, so it covers our sections, TRL's arguments, the arguments of user functions and lists
alike; no field needs its own check.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rlhf_cli.config import trl_args
from rlhf_cli.config.origins import Origins
from rlhf_cli.config.schema.experiment import field_at, leaves, valid_keys
from rlhf_cli.config.schema.trainer_sections import PpoArgs
from rlhf_cli.errors import ConfigError, UserError
from rlhf_cli.rewards.stack.returned_scores import LARGEST
from rlhf_cli.tables.trl_trainers import TRAINERS
from rlhf_cli.text.json_values import JsonTree, section

_ARGS = "trainer.args."
_RATE = re.compile(r"(^|_)(learning_rate|lr)(_|$)")
_IN_TEXT = re.compile(r"^\s*[{\[]")
_NUMERIC = re.compile(r"\b(float|int|Any|dict)\b")


def number_problems(tree: JsonTree, origins: Origins) -> Iterator[UserError]:
    """Yield a problem for every number that is NaN, infinite or beyond float32, and for negative learning rates.

    Unknown keys and keys that accept only text are left to the checks of keys and types.
    """
    for key, value in leaves(tree):
        for number in _numbers(key, value):
            if not abs(number) <= LARGEST:  # comparisons with NaN are false
                declared = _declared(tree, key)
                if declared is not None:
                    yield _refused(tree, key, value, declared, "is not a finite number", "a finite number", origins)
            elif number < 0 and key.startswith(_ARGS) and _RATE.search(key.rpartition(".")[2]):
                declared = _declared(tree, key)
                if declared is not None:
                    yield _refused(tree, key, value, declared, "is negative", "0 or more", origins)


def _numbers(key: str, value: object) -> Iterator[int | float]:
    """Yield a value that is a number; for a text under TRL's arguments, which TRL parses as JSON, the numbers in it."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        yield value
    elif isinstance(value, str) and key.startswith(_ARGS) and _IN_TEXT.match(value):
        try:
            inside = json.loads(value)
        except ValueError:
            return  # not JSON: TRL reports it, or accepts it as text
        for _, inner in leaves(inside):
            yield from _numbers("", inner)


@dataclass(frozen=True)
class _Declared:
    """The declaration of a key: its type as text ("Any" if a user's function decides), and its default."""

    annotation: str = "Any"
    default: object = None


def _declared(tree: JsonTree, key: str) -> _Declared | None:
    """Return the declaration of a key that accepts a number; None for a key that does not, or is unknown."""
    if key.startswith(_ARGS):
        declared = _declared_by_trl(section(tree, "trainer"), key.removeprefix(_ARGS).partition("."))
    else:
        path = key.split(".")
        for place, part in enumerate(path):
            if not part.isdigit() and (valid := valid_keys(path[:place])) and part not in valid:
                return None
        field = field_at(path)
        declared = _Declared(str(field.annotation), field.default) if field is not None else _Declared()
    return declared if declared is not None and _NUMERIC.search(declared.annotation) else None


def _declared_by_trl(trainer: JsonTree, name: tuple[str, str, str]) -> _Declared | None:
    own, _, below = name
    trl = trainer.get("trl")
    if not isinstance(trl, str) or trl not in TRAINERS:
        return _Declared()
    field = trl_args.trainer(trl).fields.get(own)
    if field is None and trainer.get("baseline") == "critic" and own in PpoArgs.model_fields:
        return _Declared("float", PpoArgs.model_fields[own].default)
    if field is None:
        return None
    return _Declared() if below else _Declared(field.annotation, field.default)


def _refused(
    tree: JsonTree, key: str, value: object, declared: _Declared, what: str, expected: str, origins: Origins
) -> UserError:
    if isinstance(value, str):
        what, expected, hint = f"holds a number that {what}", f"every number in it to be {expected}", None
    else:
        hint = _hint(tree, key, declared.default)
        expected += ", or null" if "None" in declared.annotation else ""
    return ConfigError(f"{key} {what}", where=origins.where(key), got=repr(value), expected=expected, hint=hint)


def _hint(tree: JsonTree, key: str, default: object) -> str | None:
    """Return what to type: the default, or a placeholder for the number; for a list entry, the whole list."""
    parent, _, name = key.rpartition(".")
    if any(part.isdigit() for part in parent.split(".")):
        return None  # a part of a list entry cannot be typed alone
    if name.isdigit():
        entries: Any = tree
        for part in parent.split("."):
            entries = entries[part]
        shown = [entry if isinstance(entry, int | float) and abs(entry) <= LARGEST else "NUMBER" for entry in entries]
        return f"{parent}=[{','.join(str(entry) for entry in shown)}]"
    is_number = isinstance(default, int | float) and not isinstance(default, bool)
    return f"{key}={default}" if is_number else f"{key}=NUMBER"
