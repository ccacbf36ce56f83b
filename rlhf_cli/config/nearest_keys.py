"""Suggests a key for an unknown one: misspelt anywhere in its path, in the wrong section, or named as in another tool
or an older version.

It compares whole paths: `rewards.brevty.wieght` has a typo in two parts, `trainer.learning_rate` lacks a part, and
`rewards.weight.brevity` has its parts in another order. If no key is near enough, it suggests none.
"""

from __future__ import annotations

import typing
from collections.abc import Iterable, Iterator, Mapping
from functools import cache

from pydantic import BaseModel

from rlhf_cli.config import trl_args
from rlhf_cli.config.owned import home_of
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.config.schema.keys import section_of
from rlhf_cli.config.schema.ppo_sections import PpoArgs
from rlhf_cli.json_values import JsonTree, section
from rlhf_cli.suggest import likeness
from rlhf_cli.tables.former_names import FORMER_NAMES, SPOKEN_SECTIONS, FormerName
from rlhf_cli.tables.trl_trainers import TRAINERS

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
