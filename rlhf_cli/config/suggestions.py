"""Find the key or value that was most likely meant, of this schema or of another tool. Imported only after a mistake.

Keys are compared as whole paths: `rewards.brevty.wieght` has a typo in two parts, `trainer.learning_rate` lacks a part,
and `rewards.weight.brevity` has its parts in another order. tables/former_names.py has names of other tools and older
versions. A suggested value is one that the key accepts: the nearest of its words, the same number with the right type,
or the default. A sign is never flipped: -1 was not meant as 1.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from rlhf_cli.config import trl_args
from rlhf_cli.config.conf_folders import groups, shipped_page
from rlhf_cli.config.rules.trainer_rules import own_fields
from rlhf_cli.config.schema.experiment import arms_of, field_at, keys_of_section, section_at, section_of, valid_keys
from rlhf_cli.config.schema.trainer_sections import PpoArgs
from rlhf_cli.tables.former_names import FORMER_NAMES, VALUE_SYNONYMS, FormerName
from rlhf_cli.tables.trl_trainers import TRAINERS
from rlhf_cli.text.json_values import JsonTree, leaves, section
from rlhf_cli.text.suggest import likeness, nearest

_ARGS = ("trainer", "args")
_OFTEN = (_ARGS, (), ("run",), ("launch",), ("model", "lora"), ("critic",), ("kl",), ("data",), ("track",))
"""The sections in the order of preference among equally near keys."""
_SHARED_WORDS = 100
"""Distances from here on mean that two parts share words; smaller ones mean a typo."""

Path = tuple[str, ...]
Rank = tuple[int, int, int, int]


@dataclass(frozen=True)
class KnownKeys:
    """The keys that an experiment has or could have, its rewards, TRL's class, and the arguments of its trainer."""

    keys: tuple[Path, ...]
    rewards: tuple[str, ...]
    trainer: str
    arguments: frozenset[str]
    has_critic: bool

    @classmethod
    def of(cls, tree: JsonTree) -> KnownKeys:
        """Return the keys of a composed experiment."""
        trainer = section(tree, "trainer")
        trl, has_critic, rewards = trainer.get("trl"), trainer.get("baseline") == "critic", tree.get("rewards")
        arguments: list[str] = []
        if isinstance(trl, str) and trl in TRAINERS:
            arguments = [*trl_args.fields_of(trl), *(PpoArgs.model_fields if has_critic else ())]
        reserved = trl_args.RESERVED_WITH_A_CRITIC if has_critic else trl_args.RESERVED_ARGS
        free = [(*_ARGS, name) for name in arguments if name not in reserved]
        free += [("model", "lora", name) for name in own_fields()]
        keys = tuple(dict.fromkeys([*_keys_below((), tree), *free]))
        names = tuple(rewards) if isinstance(rewards, dict) else ()
        return cls(keys, names, str(trl), frozenset(arguments), has_critic)


def meant_key(typed: str, known: KnownKeys) -> str | None:
    """Return the key that was most likely meant by an unknown one, or None if no key is near."""
    path, joined = tuple(typed.split(".")), typed.replace(".", "_")  # eval.steps is eval_steps
    if joined in known.arguments and joined not in trl_args.RESERVED_ARGS:
        return f"trainer.args.{joined}"
    best = _nearest(path, known.keys)
    former = next(filter(None, (former_name(name, known) for name in (typed, joined, path[-1]))), None)
    if former is not None and (best is None or best[0][0] > 0 or best[1][-1] != path[-1]):
        return former[1] or None
    return ".".join(best[1]) if best is not None else None


def nearest_path(typed: str, keys: Iterable[str]) -> str | None:
    """Return the dotted key that was most likely meant, or None if no key is near."""
    best = _nearest(tuple(typed.split(".")), [tuple(key.split(".")) for key in keys])
    return ".".join(best[1]) if best is not None else None


def former_name(name: str, known: KnownKeys) -> tuple[FormerName, str] | None:
    """Return the entry of a name of another tool or version, and today's key; None if the trainer has that name."""
    row = FORMER_NAMES.get(name)
    if row is None or name in known.arguments:
        return None
    choices = row.with_critic if row.with_critic is not None and known.has_critic else row.today
    keys = choices.split(",") if choices else []
    arguments = {key: re.match(r"trainer\.args\.(\w+)", key) for key in keys}
    fitting = [key for key, argument in arguments.items() if argument is None or argument[1] in known.arguments]
    if keys and not fitting:
        return None  # it belongs to another trainer
    key = fitting[0] if fitting else ""
    return row, key.replace(".NAME.", f".{known.rewards[0]}.") if len(known.rewards) == 1 else key


def _nearest(typed: Path, keys: Iterable[Path]) -> tuple[Rank, Path] | None:
    keys = list(keys)
    sections = {part for key in keys for part in key[:-1]}
    ranked = [(rank, key) for key in keys if (rank := _distance(typed, key, sections)) is not None]
    return min(ranked, default=None)


def _distance(typed: Path, key: Path, sections: set[str]) -> Rank | None:
    """Return a key's distance from what was typed: typos come before missing or moved parts; None if it is too far."""
    here = _OFTEN.index(key[:-1]) if key[:-1] in _OFTEN else len(_OFTEN)
    if len(typed) == len(key):
        slips = [_part_distance(part, other) for part, other in zip(typed, key, strict=True)]
        near = [slip for slip in slips if slip is not None]
        if len(near) == len(slips):
            return int(sum(near) >= _SHARED_WORDS), sum(near), 0, here
        if sorted(typed) == sorted(key):
            return 1, 0, 0, here
    if typed[-len(key) :] == key and len(key) > 1:  # behind names of sections of another tool
        return 1, 1, len(typed) - len(key), here
    last = _part_distance(typed[-1], key[-1])
    if last is None or last >= _SHARED_WORDS or (len(typed[-1]) == 1 and len(typed) == 1):
        return None
    ours, theirs = set(typed[:-1]), set(key[:-1])
    if ours <= theirs:
        return 1, last, len(theirs - ours), here
    if last == 0 and ours <= sections:
        if theirs <= ours:
            return 1, 1, len(ours - theirs), here
        if len(typed[-1]) > 3 and len(typed) == 2:
            return 2, 0, len(theirs ^ ours), here
    if last == 0 and key[:-1] == _ARGS and len(typed[-1]) > 3:
        return 2, 0, len(typed), here
    is_near = all(any(_part_distance(part, other) is not None for other in theirs) for part in ours)
    return (2, 1 + last, len(theirs), here) if is_near else None


@cache
def _part_distance(typed: str, part: str) -> int | None:
    """Return the distance between two parts of keys; `_SHARED_WORDS` or more if they only share words."""
    rank = likeness(typed, part)
    return None if rank is None else 0 if typed == part else _SHARED_WORDS * rank[0] + 4 * rank[1] + rank[2]


def _keys_below(path: Path, node: object) -> Iterator[Path]:
    """Yield the keys that `node`, the value at a path, has or could have: of its section, its list, or the user's."""
    is_named = isinstance(node, dict) and all(isinstance(value, dict) for value in node.values())
    entries = dict(enumerate(node)) if isinstance(node, list) else node if isinstance(node, dict) else {}
    below = {str(name): value for name, value in entries.items()}
    names = keys_of_section(path) or ([*below] if path != _ARGS else [])
    if isinstance(node, list) or (is_named and not valid_keys(path)):
        names = [*below]
    for name in names:
        key, value = (*path, name), below.get(name)
        # A reward without a source is itself the misspelt key.
        if path == ("rewards",) and not (isinstance(value, dict) and value.keys() & {"fn", "model", "environment"}):
            continue
        yield key
        # critic, kl and others are sections of some trainers only
        field = field_at(key)
        if path or value is not None or field is None or field.is_required() or field.default is not None:
            yield from _keys_below(key, value)


def meant_value(key: str, field: FieldInfo, value: object) -> str | None:
    """Return `key=value` with the value most likely meant by one that a key of our schema rejects, or None."""
    words = [word for arm in arms_of(field.annotation) for word in _words(arm)]
    default = field.default if isinstance(value, int | float) and value <= 0 else None
    return mended(key, value, partial(accepts, field), choices=words, default=default)


def accepts(field: FieldInfo, value: object) -> bool:
    """Return whether a field of our schema takes a value."""
    kind: Any = Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation
    # pydantic rejects a config if the type is a section, which has its own.
    is_section = section_of(field.annotation) is not None and len(arms_of(field.annotation)) == 1
    adapter: TypeAdapter[object] = TypeAdapter(kind, config=None if is_section else ConfigDict(strict=True))
    with suppress(ValidationError):
        adapter.validate_python(value)
        return True
    return False


def mended(
    key: str, value: object, takes: Callable[[object], bool], *, choices: Iterable[str] = (), default: object = None
) -> str | None:
    """Return `key=value` with the first candidate that the key `takes`, or None.

    `choices` are the words that the key accepts. `default` is suggested last, if it is a number, and 1 in place of 0.
    """
    is_number = isinstance(default, int | float) and not isinstance(default, bool)
    is_number &= not (isinstance(value, str) and value[:1].isdigit())  # 1k is no -1
    gave_number = isinstance(value, int | float) and not isinstance(value, bool)
    for meant in (*_candidates(key, value, choices), default if is_number else None, 1 if value == 0 else None):
        is_same = meant == value and type(meant) is type(value)
        if meant is not None and not is_same and takes(meant):
            in_quotes = gave_number and isinstance(meant, str)
            return f"'{key}=\"{meant}\"'" if in_quotes else f"{key}={as_typed(meant)}"
    return None


def _candidates(key: str, value: object, choices: Iterable[str]) -> Iterator[object]:
    """Yield the values that may be meant, the likeliest first; pydantic reads `yes`, `7` and 7.0 as other types."""
    word = str(value).strip()
    yield VALUE_SYNONYMS.get(key.rpartition(".")[2], {}).get(word.lower())
    if isinstance(value, list):
        yield value[::-1]
        return
    yield nearest(word, choices) if isinstance(value, str) else None
    # YAML reads these words without quotes as true or false.
    yield from ({"yes", "on"} if value is True else {"no", "off"} if value is False else set()) & {*choices}
    for kind in () if isinstance(value, bool) else (bool, int, float):
        with suppress(ValidationError):
            yield TypeAdapter(kind).validate_python(word if isinstance(value, str) else value)
    if isinstance(value, float) and 1 < value < 1e15:
        yield round(value)
    if isinstance(value, int | float) and not isinstance(value, bool) and key != "launch.slurm.time":
        yield str(value)  # YAML reads 4:00:00 as 14400, which sbatch would take for minutes
    yield [value] if word else None


def _words(arm: object) -> list[str]:
    if get_origin(arm) is Literal:
        return [word for word in get_args(arm) if isinstance(word, str)]
    return [word for inner in get_args(arm) for word in _words(inner)]


def as_typed(value: object) -> str:
    """Return a value as typed on a command line."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.12g}"
    return "[" + ",".join(map(as_typed, value)) + "]" if isinstance(value, list) else str(value)


_ROW, _NAMES = re.compile(r"\| (`.+?) \| (.+) \|"), re.compile(r"`([^`]+)`")
_STAGE_3 = re.compile(r"(?i)(z|zero|stage)\D{0,3}3|^3$")


@cache
def names_here() -> dict[str, str]:
    """Return key of another tool -> what the page says; of a row with as many names on both sides, its own name."""
    found: dict[str, str] = {}
    for theirs, ours in _ROW.findall(shipped_page("coming-from.md")):
        names, parts = _NAMES.findall(theirs), _NAMES.findall(ours)
        is_paired = len(parts) == len(names) and not _NAMES.sub("", ours).strip(", ")
        each = parts if is_paired else [ours.replace("`", "")] * len(names)
        found |= {name.removeprefix("--"): text for name, text in zip(names, each, strict=True)}
    return found


def _said_of(key: str) -> str | None:
    """Return what the page says of a key, or of TRL's name at its end; None if nothing."""
    return names_here().get(key) or names_here().get(key.rpartition(".")[2])


def answer(key: str, node: object, known: KnownKeys) -> tuple[str | None, str | None]:
    """Return what to type for an unknown key that holds `node`, and what else to say: of a section, for each value."""
    whole = key
    while isinstance(node, dict) and len(node) == 1:
        name, node = next(iter(node.items()))
        whole = f"{whole}.{name}"
    near = meant_key(key, known)
    if isinstance(node, dict) and (near is None or section_at(near.split(".")) is None):
        values = [leaf for leaf, value in leaves(node, whole) if not isinstance(value, dict)]
        here = {leaf: _said_of(leaf) or meant_key(leaf, known) for leaf in values}
        return None, "\n".join(f"{leaf}: {meant}" for leaf, meant in here.items() if meant) or None
    said, meant = _said_of(whole), meant_key(whole, known) or near
    if said is not None and re.fullmatch(r"[\w.]+(=\S+)?", said):
        return fitted(meant if (meant or "").startswith(f"{said}=") else said, key, node, known), None
    if said is not None and (meant or "").partition("=")[0] not in said:
        meant = None
    return fitted(meant, key, node, known), said


def fitted(hint: str | None, key: str, value: object, known: KnownKeys) -> str | None:
    """Return a hint that fits the typed value.

    The key gets `=VALUE` if it cannot hold that value, and a switch that is off is removed with `~`. Return None if
    the hint is a section, because a section holds no value.
    """
    if hint is None or isinstance(value, dict | list):
        return hint
    if "=" in hint:
        at_stage_3 = hint.replace("zero2", "zero3") if _STAGE_3.search(str(value)) else hint
        return f"'~{key}'" if trl_args.is_off(value) else at_stage_3
    path = hint.split(".")
    value = VALUE_SYNONYMS.get(path[-1], {}).get(str(value).lower(), value)
    if section_at(path) is not None:
        return hint if path[0] == "rewards" or value in groups().get(hint, ()) else None
    if path[:2] == ["trainer", "args"] and known.trainer in TRAINERS:
        argument = trl_args.fields_of(known.trainer).get(path[-1])
        is_taken = argument is None or trl_args.expected_instead(argument, value) is None
    else:
        field = field_at(path)
        is_taken = field is None or accepts(field, value)
    return hint if is_taken else f"{hint}=VALUE"
