"""Find the key or value that a user most likely meant.

or an older version.

It compares whole paths: `rewards.brevty.wieght` has a typo in two parts, `trainer.learning_rate` lacks a part, and
`rewards.weight.brevity` has its parts in another order. If no key is near enough, it suggests none.

wrong order. For a negative number it suggests the key's default.

Every suggestion has been validated against the key. A sign is never flipped: -1 was not meant as 1. If no case applies,
it suggests no value.
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
from rlhf_cli.config.schema.experiment import Experiment, section_of
from rlhf_cli.config.schema.trainer_sections import PpoArgs
from rlhf_cli.config.trl_args import home_of
from rlhf_cli.tables.former_names import FORMER_NAMES, SPOKEN_SECTIONS, SPOKEN_VALUES, FormerName
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
    keys = list(_keys_there_are(tree))
    best = _nearest(path, keys)
    section_meant = SPOKEN_SECTIONS.get(path[0]) if len(path) > 1 else None
    if section_meant is not None and (best is None or best[0][0] > 0):
        inside = _nearest((*section_meant.split("."), *path[1:]), keys)
        best = inside if inside is not None and inside[0][0] == 0 else best
    former = former_name(path[-1], tree)
    # A typo takes precedence over another tool's name, but a key that only moved does not.
    if former is not None and (best is None or best[0][0] > 0):
        return former[1] or None
    if best is not None:
        return ".".join(best[1])
    inner = [former_name(part, tree) for part in path[:-1]] if path[:2] == _ARGS else []
    return next((today for one in inner if one is not None and (today := one[1])), None)


def nearest_path(typed: str, keys: Iterable[str]) -> str | None:
    """Return the dotted key that was most likely meant, or None if no key is near."""
    best = _nearest(tuple(typed.split(".")), [tuple(key.split(".")) for key in keys])
    return ".".join(best[1]) if best is not None else None


def _nearest(typed: Path, keys: list[Path]) -> tuple[Rank, Path] | None:
    sections = {part for key in keys for part in key[:-1]}
    ranked = [(rank, key) for key in keys if (rank := _distance(typed, key, sections)) is not None]
    return min(ranked, default=None)


def former_name(name: str, tree: JsonTree) -> tuple[FormerName, str] | None:
    """Return the entry of a name that a setting has in another tool or an older version, and today's key.

    Return None if the name means something to today's trainer. The key is '' if the setting has no successor.
    """
    row = FORMER_NAMES.get(name)
    fields = set(_trainer_fields(tree))
    if row is None or name in fields:
        return None
    choices = row.with_critic if row.with_critic is not None and _has_critic(tree) else row.today
    keys = choices.split(",") if choices else []
    prefix = ".".join(_ARGS) + "."
    known = [key for key in keys if not key.startswith(prefix) or _argument(key, prefix) in fields]
    if keys and not known:
        return None  # it belongs to another trainer
    return row, _with_reward(known[0], tree) if known else ""


def _argument(key: str, prefix: str) -> str:
    return key.removeprefix(prefix).partition("=")[0].partition(".")[0]


def _with_reward(key: str, tree: JsonTree) -> str:
    """Replace NAME by the name of the reward if the experiment has exactly one."""
    names = list(section(tree, "rewards"))
    return key.replace(".NAME.", f".{names[0]}.") if len(names) == 1 else key


def _distance(typed: Path, key: Path, sections: set[str]) -> Rank | None:
    """Return the distance of a key from what was typed, as a tuple for sorting; None if it is too far.

    Keys that differ only by typos come first, then those with missing, extra or reordered parts. `sections` are the
    names of all sections.
    """
    here = _OFTEN.index(key[:-1]) if key[:-1] in _OFTEN else len(_OFTEN)
    if len(typed) == len(key):
        slipped = _slipped(typed, key)
        if slipped is not None:
            return int(slipped >= _SHARED_WORDS), slipped, 0, here
        if sorted(typed) == sorted(key):
            return 1, 0, 0, here
    last = _part_distance(typed[-1], key[-1])
    if last is None or last >= _SHARED_WORDS or (len(typed[-1]) == 1 and len(typed) == 1):
        return None
    ours, theirs = set(typed[:-1]), set(key[:-1])
    if ours <= theirs:
        return 1, last, len(theirs - ours), here
    if theirs <= ours and ours <= sections and last == 0:
        return 1, 1, len(ours - theirs), here
    if last == 0 and len(typed[-1]) > 3 and ours <= sections:
        return 2, 0, len(theirs ^ ours), here
    near = [any(_part_distance(one, other) is not None for other in theirs) for one in ours]
    return (2, 1 + last, len(theirs), here) if all(near) else None


def _slipped(typed: Path, key: Path) -> int | None:
    """Return the summed distance of all parts of a key, or None if one is too far."""
    total = 0
    for one, other in zip(typed, key, strict=True):
        distance = _part_distance(one, other)
        if distance is None:
            return None
        total += distance
    return total


@cache
def _part_distance(typed: str, part: str) -> int | None:
    """Return the distance between two parts of keys; `_SHARED_WORDS` or more if they only share words."""
    if typed == part:
        return 0
    if abs(len(typed) - len(part)) > 12:
        return None
    rank = likeness(typed, part)
    if rank is None:
        return None
    kind, distance, unlike = rank
    return _SHARED_WORDS * kind + 4 * distance + unlike


def _keys_there_are(tree: JsonTree) -> Iterator[Path]:
    """Yield every key that the experiment has or could have: from the schema, the trainer and the composed tree."""
    yield from dict.fromkeys(
        [
            *_of_section(Experiment, (), tree),
            *((*_ARGS, name) for name in _trainer_fields(tree) if home_of(name, has_critic=_has_critic(tree)) is None),
        ]
    )


def _of_section(kind: type[BaseModel], prefix: Path, node: Mapping[str, object]) -> Iterator[Path]:
    for name, field in kind.model_fields.items():
        key = (*prefix, field.alias or name)
        below = node.get(key[-1])
        if not prefix and below is None and not field.is_required() and field.default is None:
            yield key  # critic, kl and others are sections of some trainers only
            continue
        yield key
        yield from _below(field.annotation, key, below)


def _below(annotation: object, key: Path, node: object) -> Iterator[Path]:
    entries: Mapping[str, object] = node if isinstance(node, dict) else {}
    inner = section_of(annotation)
    if inner is not None:
        yield from _of_section(inner, key, entries)
        return
    of_entries = next(
        (arm for arm in (annotation, *typing.get_args(annotation)) if typing.get_origin(arm) is dict), None
    )
    if of_entries is None or key == _ARGS:
        return
    for name, value in entries.items():
        of_value = section_of(typing.get_args(of_entries)[1])
        # A reward without fn and model is itself the misspelt key.
        if key == ("rewards",) and not (isinstance(value, dict) and value.keys() & {"fn", "model"}):
            continue
        yield (*key, str(name))
        if of_value is not None:
            yield from _of_section(of_value, (*key, str(name)), value if isinstance(value, dict) else {})


def _trainer_fields(tree: JsonTree) -> list[str]:
    name = section(tree, "trainer").get("trl")
    if not isinstance(name, str) or name not in TRAINERS:
        return []
    return [*trl_args.trainer(name).fields, *(PpoArgs.model_fields if _has_critic(tree) else ())]


def _has_critic(tree: JsonTree) -> bool:
    return section(tree, "trainer").get("baseline") == "critic"


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
