"""Find the key or the value that a user most likely meant. Imported only after something was refused.

Keys are compared as whole paths: `rewards.brevty.wieght` has a typo in two parts, `trainer.learning_rate` lacks a part,
and `rewards.weight.brevity` has its parts in another order. Names of other tools and of older versions come from
tables/former_names.py.

A suggested value is one that the key accepts: the nearest of its words, the same number with the right type or unit, or
the default. A sign is never flipped: -1 was not meant as 1. If no value is near enough, there is no suggestion.
"""

from __future__ import annotations

import re
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from rlhf_cli.config import trl_args
from rlhf_cli.config.schema.experiment import Experiment, arms_of, section_of
from rlhf_cli.config.schema.trainer_sections import PpoArgs
from rlhf_cli.tables.former_names import FORMER_NAMES, KEY_SYNONYMS, SECTION_SYNONYMS, VALUE_SYNONYMS, FormerName
from rlhf_cli.tables.trl_trainers import TRAINERS
from rlhf_cli.text.json_values import JsonTree, section
from rlhf_cli.text.suggest import likeness, nearest

_ARGS = ("trainer", "args")
_OFTEN = (_ARGS, (), ("run",), ("launch",), ("model", "lora"), ("critic",), ("kl",), ("data",), ("track",))
"""The sections in the order of preference among equally near keys."""
_SHARED_WORDS = 100
"""Distances from here on mean that two parts share words; smaller ones mean a typo."""

Path = tuple[str, ...]
Rank = tuple[int, int, int, int]


def meant_key(typed: str, tree: JsonTree) -> str | None:
    """Return the key that was most likely meant by an unknown one, or None if no key is near.

    `tree` is the composed experiment; its trainer and rewards determine which keys exist.
    """
    path = tuple(typed.split("."))
    sections = [part for part in path[:-1] if not part.isdigit()]
    spoken = KEY_SYNONYMS.get(sections[-1], {}).get(path[-1]) if sections else None
    if spoken is not None:
        return ".".join((*path[:-1], spoken))
    keys = list(_keys_there_are(tree))
    best = _nearest(path, keys)
    if len(path) > 1 and path[0] in SECTION_SYNONYMS and (best is None or best[0][0] > 0):
        inside = _nearest((*SECTION_SYNONYMS[path[0]].split("."), *path[1:]), keys)
        best = inside if inside is not None and inside[0][0] == 0 else best
    former = former_name(path[-1], tree)
    # A typo takes precedence over another tool's name, but a key that only moved does not.
    if former is not None and (best is None or best[0][0] > 0):
        return former[1] or None
    if best is not None:
        return ".".join(best[1])
    inner = [former_name(part, tree) for part in path[:-1]] if path[:2] == _ARGS else []
    return next((one[1] for one in inner if one is not None and one[1]), None)


def nearest_path(typed: str, keys: Iterable[str]) -> str | None:
    """Return the dotted key that was most likely meant, or None if no key is near."""
    best = _nearest(tuple(typed.split(".")), [tuple(key.split(".")) for key in keys])
    return ".".join(best[1]) if best is not None else None


def former_name(name: str, tree: JsonTree) -> tuple[FormerName, str] | None:
    """Return the entry of a name that a setting has in another tool or an older version, and today's key.

    Return None if the name means something to today's trainer.
    """
    row = FORMER_NAMES.get(name)
    fields = set(_trainer_fields(tree))
    if row is None or name in fields:
        return None
    choices = row.with_critic if row.with_critic is not None and _has_critic(tree) else row.today
    keys = choices.split(",") if choices else []
    known = [key for key in keys if (field := re.match(r"trainer\.args\.(\w+)", key)) is None or field[1] in fields]
    if keys and not known:
        return None  # it belongs to another trainer
    names = list(section(tree, "rewards"))
    key = known[0] if known else ""
    return row, key.replace(".NAME.", f".{names[0]}.") if len(names) == 1 else key


def _nearest(typed: Path, keys: list[Path]) -> tuple[Rank, Path] | None:
    sections = {part for key in keys for part in key[:-1]}
    ranked = [(rank, key) for key in keys if (rank := _distance(typed, key, sections)) is not None]
    return min(ranked, default=None)


def _distance(typed: Path, key: Path, sections: set[str]) -> Rank | None:
    """Return the distance of a key from what was typed, as a tuple for sorting; None if it is too far.

    Keys that differ only by typos come first, then those with missing, extra or reordered parts. `sections` are the
    names of all sections.
    """
    here = _OFTEN.index(key[:-1]) if key[:-1] in _OFTEN else len(_OFTEN)
    if len(typed) == len(key):
        slips = [_part_distance(one, other) for one, other in zip(typed, key, strict=True)]
        known = [slip for slip in slips if slip is not None]
        if len(known) == len(slips):
            return int(sum(known) >= _SHARED_WORDS), sum(known), 0, here
        if sorted(typed) == sorted(key):
            return 1, 0, 0, here
    last = _part_distance(typed[-1], key[-1])
    if last is None or last >= _SHARED_WORDS or (len(typed[-1]) == 1 and len(typed) == 1):
        return None
    ours, theirs = set(typed[:-1]), set(key[:-1])
    if ours <= theirs:
        return 1, last, len(theirs - ours), here
    if last == 0 and ours <= sections:
        if theirs <= ours:
            return 1, 1, len(ours - theirs), here
        if len(typed[-1]) > 3:
            return 2, 0, len(theirs ^ ours), here
    near = [any(_part_distance(one, other) is not None for other in theirs) for one in ours]
    return (2, 1 + last, len(theirs), here) if all(near) else None


@cache
def _part_distance(typed: str, part: str) -> int | None:
    """Return the distance between two parts of keys; `_SHARED_WORDS` or more if they only share words."""
    rank = likeness(typed, part)
    return None if rank is None else 0 if typed == part else _SHARED_WORDS * rank[0] + 4 * rank[1] + rank[2]


def _keys_there_are(tree: JsonTree) -> Iterator[Path]:
    """Yield every key that the experiment has or could have: from the schema, the trainer and the composed tree."""
    reserved = trl_args.RESERVED_WITH_A_CRITIC if _has_critic(tree) else trl_args.RESERVED_ARGS
    free = [name for name in _trainer_fields(tree) if name not in reserved]
    yield from dict.fromkeys([*_of_section(Experiment, (), tree), *((*_ARGS, name) for name in free)])


def _of_section(kind: type[BaseModel], prefix: Path, node: object) -> Iterator[Path]:
    entries: Mapping[str, object] = node if isinstance(node, dict) else {}
    for name, field in kind.model_fields.items():
        key = (*prefix, field.alias or name)
        below = entries.get(key[-1])
        yield key
        # critic, kl and others are sections of some trainers only
        if prefix or below is not None or field.is_required() or field.default is not None:
            yield from _below(field.annotation, key, below)


def _below(annotation: object, key: Path, node: object) -> Iterator[Path]:
    """Yield the keys below one: of its section, of the entries of its list, or of those with names of the user's."""
    arms = arms_of(annotation)
    inside = {typing.get_origin(arm): section_of(typing.get_args(arm)[-1]) for arm in arms if typing.get_args(arm)}
    section_here = next((arm for arm in arms if isinstance(arm, type) and issubclass(arm, BaseModel)), None)
    is_named = isinstance(node, dict) and all(isinstance(value, dict) for value in node.values())
    if isinstance(node, list) and list in inside:
        entries, of_entry = {str(place): value for place, value in enumerate(node)}, inside[list]
    elif dict in inside and key != _ARGS and (is_named or section_here is None):
        entries, of_entry = node if isinstance(node, dict) else {}, inside[dict]
    else:
        yield from _of_section(section_here, key, node) if section_here is not None else ()
        return
    for name, value in entries.items():
        # A reward without fn and model is itself the misspelt key.
        if key == ("rewards",) and not (isinstance(value, dict) and value.keys() & {"fn", "model"}):
            continue
        yield (*key, str(name))
        if of_entry is not None:
            yield from _of_section(of_entry, (*key, str(name)), value)


def _trainer_fields(tree: JsonTree) -> list[str]:
    name = section(tree, "trainer").get("trl")
    if not isinstance(name, str) or name not in TRAINERS:
        return []
    return [*trl_args.fields_of(name), *(PpoArgs.model_fields if _has_critic(tree) else ())]


def _has_critic(tree: JsonTree) -> bool:
    return section(tree, "trainer").get("baseline") == "critic"


# Values

_SWITCHES = {
    **dict.fromkeys(("yes", "on", "true", "y", "1"), True),
    **dict.fromkeys(("no", "off", "false", "n", "0"), False),
}
_WITH_UNIT = re.compile(r"^\s*(?P<number>[-+]?[\d_]*[.,]?\d+(?:e[-+]?\d+)?)\s*(?P<unit>[a-z%]*)\s*$", re.IGNORECASE)
_UNITS: dict[str, dict[str, float]] = {
    "_s": {"ms": 0.001, "s": 1, "sec": 1, "second": 1, "m": 60, "min": 60, "minute": 60, "h": 3600, "hr": 3600}
    | {"hour": 3600, "d": 86400, "day": 86400},
    "_gb": {"m": 1 / 1024, "mb": 1 / 1024, "mib": 1 / 1024, "g": 1, "gb": 1, "gib": 1, "tb": 1024},
    "": {"k": 1e3, "m": 1e6},
}
"""The ending of a key -> a unit -> the unit in that of the key."""

Takes = Callable[[object], bool]
"""Returns whether a key accepts a value."""


def meant_value(key: str, field: FieldInfo, value: object) -> str | None:
    """Return `key=value` with the value most likely meant by one that a key of our schema rejects, or None."""
    adapter = _adapter(field)
    words = [word for arm in arms_of(field.annotation) for word in _words(arm)]
    default = field.default if isinstance(value, int | float) and value < 0 else None
    return first_taken(key, value, lambda one: _is_valid(adapter, one), choices=words, default=default)


def first_taken(
    key: str, value: object, takes: Takes, *, choices: Iterable[str] = (), default: object = None
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


def _candidates(key: str, value: object, choices: Iterable[str]) -> Iterator[object]:
    """Yield what may be meant by a value, the likeliest first."""
    name = key.rpartition(".")[2]
    spoken = VALUE_SYNONYMS.get(name, {})
    if isinstance(value, str):
        word = value.strip().lower()
        yield spoken.get(word)
        yield from _numbers(name, spoken.get(word, ""))
        yield nearest(value, choices)
        yield _SWITCHES.get(word)
        yield from _numbers(name, word)
        yield re.sub(r"[^A-Za-z0-9._-]+", "-", value).strip("._-")[:128] or None  # the name of a run
        yield [value]
    elif isinstance(value, bool):
        yield from (spoken.get(str(value).lower()), "auto" if value else "off")
    elif isinstance(value, list):
        yield value[::-1]
    elif isinstance(value, int | float) and abs(value) < 1e18:  # false for NaN
        whole = int(value)
        if value == whole:
            yield from (whole, _SWITCHES.get(str(whole)))
        yield from (spoken.get(str(whole)), whole if value > 0 else None)
        yield from (value / 100 if 1 < value <= 100 else None, 1 if value == 0 else None, [value])


def _numbers(name: str, text: str) -> Iterator[object]:
    """Yield the number in a text, whole if it is; its unit is converted to the one that the key's name ends with."""
    match = _WITH_UNIT.match(text)
    if match is None:
        return
    unit = match["unit"].lower()
    units = next(units for ending, units in _UNITS.items() if name.endswith(ending))
    factor = {"": 1, "%": 0.01}.get(unit) or units.get(unit) or units.get(unit.removesuffix("s"))
    if factor is not None:
        number = float(match["number"].replace("_", "").replace(",", ".")) * factor
        yield from (int(number) if number == int(number) else None, number)


def meant_inside(key: str, kind: type[BaseModel], value: object, *, is_there: bool = False) -> str | None:
    """Return `key=value` with the first key of a section that accepts a value given for the whole section.

    `is_there` says that the files have such a section, to which the key is added. Where they do not, and the section
    needs more than that key, `...` stands for the rest.
    """
    if value is True and _is_valid(TypeAdapter(kind), {}):
        return f"'{key}={{}}'"
    for name, field in kind.model_fields.items():
        if value is not None and _is_valid(_adapter(field), value):
            given = field.alias or name
            is_enough = is_there or _is_valid(TypeAdapter(kind), {given: value})
            return f"{key}.{given}={_shown(value)}" if is_enough else f"'{key}={{{given}: {_shown(value)}, ...}}'"
    return None


def _adapter(field: FieldInfo) -> TypeAdapter[object]:
    """Return an adapter that validates a value for a field, as strictly as its section does."""
    kind: Any = Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation
    # pydantic rejects a config if the type is a section, which has its own.
    return TypeAdapter(kind, config=ConfigDict(strict=True) if section_of(field.annotation) is None else None)


def _words(arm: object) -> list[str]:
    """Return the words that a type lists, also inside a list."""
    if typing.get_origin(arm) is typing.Literal:
        return [word for word in typing.get_args(arm) if isinstance(word, str)]
    return [word for inner in typing.get_args(arm) for word in _words(inner)]


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
