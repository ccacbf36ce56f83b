"""Check every number of a composed tree: it must be finite, and learning rates must not be negative.

The check walks the composed tree, so it covers our sections, TRL's arguments, the arguments of user functions and lists
alike; no field needs its own check.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
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
_NUMERIC = re.compile(r"\b(float|int|Any|dict)\b")
_ANY: tuple[str, object] = ("Any", None)


def number_problems(tree: JsonTree, origins: Origins) -> Iterator[UserError]:
    """Yield a problem for every number that is NaN, infinite or beyond float32, and for negative learning rates.

    Unknown keys and keys that accept only text are left to the checks of keys and types.
    """
    for key, value in leaves(tree):
        for number in _numbers(key, value):
            if not abs(number) <= LARGEST:  # comparisons with NaN are false
                what, expected = "is not a finite number", "a finite number"
            elif number < 0 and key.startswith(_ARGS) and _RATE.search(key.rpartition(".")[2]):
                what, expected = "is negative", "0 or more"
            else:
                continue
            annotation, default = _declared(tree, key)
            if not _NUMERIC.search(annotation):
                continue
            if isinstance(value, str):
                what, expected, hint = f"holds a number that {what}", f"every number in it to be {expected}", None
            else:
                hint = _hint(tree, key, default)
                expected += ", or null" if "None" in annotation else ""
            yield ConfigError(f"{key} {what}", where=origins.where(key), got=repr(value), expected=expected, hint=hint)


def _numbers(key: str, value: object) -> Iterator[int | float]:
    """Yield a value that is a number; for a text under TRL's arguments, which TRL parses as JSON, the numbers in it."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        yield value
    elif isinstance(value, str) and key.startswith(_ARGS) and value.lstrip()[:1] in ("{", "["):
        try:
            inside = json.loads(value)
        except ValueError:
            return  # not JSON: TRL reports it, or accepts it as text
        yield from (number for _, inner in leaves(inside) for number in _numbers("", inner))


def _declared(tree: JsonTree, key: str) -> tuple[str, object]:
    """Return the type of a key as text and its default: "Any" if a user's function decides, '' if it is unknown."""
    if key.startswith(_ARGS):
        return _declared_by_trl(section(tree, "trainer"), key.removeprefix(_ARGS))
    path = key.split(".")
    for place, part in enumerate(path):
        if not part.isdigit() and (valid := valid_keys(path[:place])) and part not in valid:
            return "", None
    field = field_at(path)
    return (str(field.annotation), field.default) if field is not None else _ANY


def _declared_by_trl(trainer: JsonTree, key: str) -> tuple[str, object]:
    name, _, below = key.partition(".")
    trl = trainer.get("trl")
    if not isinstance(trl, str) or trl not in TRAINERS:
        return _ANY
    field = trl_args.trainer(trl).fields.get(name)
    if field is None and trainer.get("baseline") == "critic" and name in PpoArgs.model_fields:
        return "float", PpoArgs.model_fields[name].default
    if field is None:
        return "", None
    return _ANY if below else (field.annotation, field.default)


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
