"""Explain what pydantic rejects: one error for each key, with its place and what was probably meant.

It is imported only after something was refused.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from rlhf_cli.config.conf_folders import APPENDED_GROUPS, groups
from rlhf_cli.config.origins import Origins
from rlhf_cli.config.schema.experiment import field_at, keys_of_section, section_at, valid_keys
from rlhf_cli.config.suggestions import former_name, meant_inside, meant_key, meant_value
from rlhf_cli.errors import ConfigError, UserError
from rlhf_cli.tables.former_names import VALUE_SYNONYMS
from rlhf_cli.text.json_values import JsonTree, JsonValue
from rlhf_cli.text.suggest import nearest

Path = list[int | str]

_FORMS = {
    "run": "at most 128 letters, digits, '.', '_' and '-', the first a letter or a digit: it names the run's folder",
    "launch": "HOST:PORT, such as node1:29500",
    "rewards": "at most 128 letters, digits and '_', the first no digit: overrides name the reward so",
}
"""Section -> the pattern for its texts, in words."""


def schema_problems(error: ValidationError, tree: JsonTree, origins: Origins) -> Iterator[UserError]:
    """Yield an error for every key that pydantic rejects; only one per key, even for a union."""
    by_key: dict[str, tuple[Path, list[ErrorDetails]]] = {}
    for detail in error.errors(include_url=False):
        path = _keys_of(detail, tree)
        by_key.setdefault(_dotted(path), (path, []))[1].append(detail)
    unknown = {
        key: _unknown(path, tree, origins)
        for key, (path, details) in by_key.items()
        if details[0]["type"] == "extra_forbidden"
    }
    meant = {problem.hint for problem in unknown.values()}
    for key, (path, details) in by_key.items():
        if any(other.startswith(key + ".") for other in by_key):
            continue  # the longer key describes the same problem more precisely
        if key in unknown:
            yield unknown[key]
        elif details[0]["type"] != "missing":
            yield _wrong(path, details, tree, origins)
        elif not {key, str(path[-1])} & meant:  # else it was given under another name
            hint = f"{path[-1]}: VALUE" if _in_a_list(path) else f"{key}=VALUE"
            yield ConfigError(f"{key} must be given", where=origins.where(key), hint=hint)


def _unknown(path: Path, tree: JsonTree, origins: Origins) -> UserError:
    key, name = _dotted(path), str(path[-1])
    where = origins.where(key)
    if "." in name:
        return ConfigError(
            f"{name!r} is one key with dots in it",
            where=where,
            expected="keys nested in one another: dots are for the command line",
            hint=_nested(path, tree),
        )
    former, hint = former_name(name, tree), _group_choice(path, tree) or _meant_key(path, tree)
    expected = f"one of {', '.join(sorted(keys_of_section(path[:-1])))}"
    if former is not None and former[1] == hint:
        expected = f"{former[1]}, which {former[0].whose} called {name}"
    # A part of a list entry cannot be typed alone.
    hint = hint.rpartition(".")[2] if hint is not None and _in_a_list(path) else hint
    return ConfigError(f"unknown key {key!r}", where=where, expected=expected, hint=hint)


def _nested(path: Path, tree: JsonTree) -> str:
    """Return the YAML for a key that a file wrote with dots, from its outermost new key."""
    value: Any = tree
    for part in path:
        value = value[part]
    for name in reversed(str(path[-1]).split(".")):
        value = {name: value}
    return yaml.safe_dump(value, default_flow_style=True, width=math.inf).strip()[1:-1]


def _group_choice(path: Path, tree: JsonTree) -> str | None:
    """Return the group choice meant by a misspelt group such as `trianer=ppo`, recognised by its option."""
    value, known = tree.get(str(path[0])), groups()
    group = nearest(str(path[0]), known) if len(path) == 1 and isinstance(value, str) else None
    if group is None or value not in known[group]:
        return None
    return f"{'+' if group in APPENDED_GROUPS else ''}{group}={value}"


def _meant_key(path: Path, tree: JsonTree) -> str | None:
    """Return the key that was meant: the full key if one value was given below it, else only the wrong part."""
    node: Any = tree
    for part in path:
        node = node[part]
    whole = list(path)
    while isinstance(node, dict) and len(node) == 1:
        name, node = next(iter(node.items()))
        whole.append(name)
    return meant_key(_dotted(whole), tree) or (meant_key(_dotted(path), tree) if len(whole) > len(path) else None)


def _wrong(path: Path, details: list[ErrorDetails], tree: JsonTree, origins: Origins) -> UserError:
    key = _dotted(path)
    given: JsonValue = details[0]["input"]
    shown = repr(given) if not isinstance(given, dict) else ", ".join(given) or "{}"
    return ConfigError(
        f"wrong value for {key or 'the experiment'}",
        where=origins.where(key),
        got=shown,
        expected=", or ".join(dict.fromkeys(_expected(detail, path) for detail in details)),
        hint=_section_choice(path, given, origins)
        or _reward_choice(path, given, details[0]["type"], tree, is_typed=_is_typed(path, origins))
        or _meant_value(path, given, origins),
    )


def _meant_value(path: Path, given: JsonValue, origins: Origins) -> str | None:
    """Return `key=value` with the value that was meant; `name: value` for the entry of a list, as YAML."""
    if not path or isinstance(path[-1], int):
        return None
    key, kind, field = _dotted(path), section_at(path), field_at(path)
    if kind is not None and not isinstance(given, dict | list):
        is_there = any(other.startswith(f"{key}.") for other in origins.by_key)
        hint = meant_inside(key, kind, given, is_there=is_there)
    else:
        hint = meant_value(key, field, given) if field is not None else None
    return f"{path[-1]}: {hint.partition('=')[2]}" if hint is not None and _in_a_list(path) else hint


def _section_choice(path: Path, given: JsonValue, origins: Origins) -> str | None:
    """Return the ready-made section meant by a word or null, as in `track: null`, or by a path beside a `build`."""
    group = _dotted(path)
    options = groups().get(group, {})
    if group == "model" and isinstance(given, dict) and bool(given.get("path")) == bool(given.get("build")):
        return f"model=local model.path={given.get('path') or 'FOLDER_OR_HUB_ID'}"
    if group in APPENDED_GROUPS or not options or isinstance(given, dict | list | int | float):
        return None
    word = "null" if given is None else str(given)
    close = VALUE_SYNONYMS.get(group, {}).get(word.lower()) or nearest(word, options)
    return (
        None if close is None else f"{group}={close}" if _is_typed(path, origins) else f"- override /{group}: {close}"
    )


def _is_typed(path: Path, origins: Origins) -> bool:
    origin = origins.of(_dotted(path))
    return origin is None or origin.file is None


def _reward_choice(path: Path, given: JsonValue, kind: str, tree: JsonTree, *, is_typed: bool) -> str | None:
    """Return what was meant by a wrong entry of `rewards`: a valid name, a ready-made reward, or another reward."""
    if path == ["rewards"] and given:
        return named_rewards(given, is_typed=is_typed)
    if len(path) != 2 or path[0] != "rewards":
        return None
    if kind == "string_pattern_mismatch":
        name = re.sub(r"\W+", "_", str(given), flags=re.ASCII).lstrip("0123456789")[:128]
        return f"rewards.{name}" if name else None
    if isinstance(given, str) and (close := nearest(given, groups().get("reward", {}))) is not None:
        return f"reward@rewards.{path[1]}={close}"
    is_misnamed = isinstance(given, dict) and given and not given.keys() & {"fn", "model"}
    return _meant_key(path, tree) if is_misnamed else None


NAMED_REWARDS = "named entries under `rewards:`, each with `fn` or `model`"


def named_rewards(given: object, *, is_typed: bool) -> str:
    """Return rewards that were given without names, named after their functions, as words or as lines of YAML."""
    words, lines, named = list[str](), list[str](), dict[str, object]()
    for one in given if isinstance(given, list) else [given]:
        if isinstance(one, str) and one in groups().get("reward", {}):
            words, lines = [*words, f"reward@rewards.{one}={one}"], [*lines, f"- /reward@rewards.{one}: {one}"]
            continue
        entry = dict(one) if isinstance(one, dict) else {"fn": str(one) if ":" in str(one) else f"./rewards.py:{one}"}
        name = re.sub(r"\W+", "_", str(entry.pop("name", entry.get("fn", "NAME"))).rpartition(":")[2])
        named[name], words = entry, [*words, *(f"rewards.{name}.{key}={value}" for key, value in entry.items())]
    if named:
        lines.append(yaml.safe_dump({"rewards": named}, default_flow_style=True, width=math.inf, sort_keys=False)[1:-2])
    return " ".join(words) if is_typed else "\n".join(lines)


def _keys_of(detail: ErrorDetails, tree: JsonTree) -> Path:
    """Return the keys in pydantic's location, without the names it inserts for a union's alternatives."""
    keys: Path = []
    node: Any = tree
    for part in detail["loc"]:
        inside = part in node if isinstance(node, dict) else isinstance(node, list) and part in range(len(node))
        if inside:
            keys.append(part)
            node = node[part]
    is_absent_key = detail["type"] == "missing" and isinstance(detail["loc"][-1], str)
    return [*keys, detail["loc"][-1]] if is_absent_key else keys


def _expected(detail: ErrorDetails, path: Path) -> str:
    if detail["type"] in ("model_type", "model_attributes_type") and (keys := valid_keys(path)):
        field = field_at(path)
        or_none = ", or null for none" if field is not None and field.default is None else ""
        return f"a section with {', '.join(keys)}{or_none}"
    if detail["type"] == "string_pattern_mismatch" and path[0] in _FORMS:
        return _FORMS[str(path[0])]
    if detail["type"] == "dict_type" and path == ["rewards"]:
        return NAMED_REWARDS
    if detail["type"] == "bool_type" and path[0] == "warn":
        return "on or off"
    if detail["type"] == "tuple_type":
        return "[LOW, HIGH], two numbers"
    text = detail["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
    return text.removeprefix("a valid ")


def _in_a_list(path: Path) -> bool:
    return any(isinstance(part, int) for part in path)


def _dotted(path: Path) -> str:
    return ".".join(str(part) for part in path)
