"""Compose a half-typed command from the YAML files alone, because Hydra takes half a second, too slow for Tab.

Used for suggestions: the chosen trainer, the rewards, the value of a key. Interpolations are not resolved, and
unreadable files count as empty.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import yaml

from rlhf_cli.config.conf_folders import APPENDED_GROUPS, find, groups
from rlhf_cli.text.json_values import JsonTree, JsonValue
from rlhf_cli.text.yaml_loader import SAFE_LOADER

_PRIMARY = "train"
_SELF = "_self_"
_GLOBAL = "# @package _global_"


def tree_so_far(words: Iterable[str]) -> JsonTree:
    """Return roughly what Hydra would compose from `words`; words that are not overrides are ignored."""
    chosen, added, values = _sorted(words)
    primary = _read(_PRIMARY)
    defaults = [_entry(one) for one in _defaults(primary)]
    primary.pop("defaults", None)
    for config in _files_of(added):
        chosen = {**_overridden(config), **chosen}
    tree: JsonTree = {}
    for path, _ in defaults:
        if path == _SELF:
            _merge(tree, primary)
        elif option := chosen.get(path, _option(defaults, path)):
            _add(tree, f"{path}/{option}", path)
    for path, option in added:
        group, _, package = path.partition("@")
        _add(tree, f"{group}/{option}", package or group)
    for key, value in values:
        _merge(tree, _nested(key, value))
    return tree


def value_so_far(tree: JsonTree, key: str) -> JsonValue:
    """Return the value of a dotted key, the whole tree for '', or None."""
    node: JsonValue = tree
    for part in key.split(".") if key else []:
        node = node.get(part) if isinstance(node, dict) else None
    return node


def _sorted(words: Iterable[str]) -> tuple[dict[str, str], list[tuple[str, str]], list[tuple[str, JsonValue]]]:
    """Return group choices, additions to the defaults (group@package, option), and values by key."""
    chosen: dict[str, str] = {}
    added: list[tuple[str, str]] = []
    values: list[tuple[str, JsonValue]] = []
    known = groups()
    for word in words:
        key, equals, value = word.lstrip("+").partition("=")
        if not equals or word.startswith(("-", "~")):
            continue
        group = key.partition("@")[0]
        option = value.partition(",")[0]  # use the first value of a sweep
        if group not in known or value.startswith("{"):
            values.append((key, _parsed(value)))
        elif group in APPENDED_GROUPS or "@" in key:
            added.append((key, option))
        else:
            chosen[group] = option
    added.sort(key=lambda one: APPENDED_GROUPS.index(one[0]) if one[0] in APPENDED_GROUPS else -1)
    return chosen, added, values


def _files_of(added: list[tuple[str, str]]) -> Iterator[JsonTree]:
    for path, option in added:
        yield _read(f"{path.partition('@')[0]}/{option}")


def _overridden(config: JsonTree) -> dict[str, str]:
    """Return the groups that a file's defaults list overrides: `override /trainer: ppo`."""
    entries = [_entry(one) for one in _defaults(config)]
    return {
        path.removeprefix("override ").strip().lstrip("/"): option
        for path, option in entries
        if path.startswith("override ") and option
    }


def _add(tree: JsonTree, config_path: str, package: str) -> None:
    """Merge a file and the entries of its defaults list under the package that Hydra would use."""
    file = find(config_path)
    if file is None:
        return
    is_global = file.read_text(encoding="utf-8").lstrip().startswith(_GLOBAL)
    group = config_path.rpartition("/")[0]
    if is_global and package == group:
        package = ""
    config = _read(config_path)
    entries = [_entry(one) for one in _defaults(config)]
    config.pop("defaults", None)
    if not any(path == _SELF for path, _ in entries):
        entries.append((_SELF, None))
    for path, option in entries:
        if path == _SELF:
            _merge(tree, _nested(package, config) if package else config)
        elif not path.startswith("override "):
            _add_entry(tree, path, option, group, package)


def _add_entry(tree: JsonTree, path: str, option: str | None, group: str, package: str) -> None:
    """Merge an entry of a defaults list: `/reward@rewards.x: brevity`, or `grpo@trainer`, a file beside this one."""
    name, _, where = path.partition("@")
    if option is None:
        _add(tree, f"{group}/{name}", where or package)
    elif name.startswith("/"):
        _add(tree, f"{name.lstrip('/')}/{option}", where or name.lstrip("/").replace("/", "."))
    else:
        _add(tree, f"{group}/{name}/{option}", where or name)


def _option(defaults: list[tuple[str, str | None]], path: str) -> str | None:
    return next((option for name, option in defaults if name == path), None)


def _entry(entry: JsonValue) -> tuple[str, str | None]:
    if isinstance(entry, dict) and entry:
        name, option = next(iter(entry.items()))
        return name, str(option) if option is not None else None
    return str(entry), None


def _defaults(config: JsonTree) -> list[JsonValue]:
    found = config.get("defaults")
    return found if isinstance(found, list) else []


def _read(config_path: str) -> JsonTree:
    file = find(config_path)
    try:
        tree = yaml.load(file.read_text(encoding="utf-8"), Loader=SAFE_LOADER) if file is not None else {}
    except (yaml.YAMLError, OSError, UnicodeDecodeError):
        return {}
    return tree if isinstance(tree, dict) else {}


def _parsed(value: str) -> JsonValue:
    try:
        parsed: JsonValue = yaml.load(value, Loader=SAFE_LOADER)
    except yaml.YAMLError:
        return value
    return parsed


def _nested(key: str, value: JsonValue) -> JsonTree:
    node: JsonValue = value
    for part in reversed(key.split(".")):
        node = {part: node}
    assert isinstance(node, dict)
    return node


def _merge(tree: JsonTree, more: JsonTree) -> None:
    for key, value in more.items():
        below = tree.get(key)
        if isinstance(below, dict) and isinstance(value, dict):
            _merge(below, value)
        else:
            tree[key] = value
