"""Diagnoses mistakes in the defaults lists of the chosen files, with file, line and nearest name.

For such a mistake Hydra only reports that something was not found or not overridden, without a line. So after a Hydra
error, this module reads the lists again: those of the files in `exp` or `debug` and of the files they build on.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

from rlhf_cli.config.conf_folders import APPENDED_GROUPS, find, groups, shipped_dir
from rlhf_cli.config.origins import Origin
from rlhf_cli.errors import ConfigError, Prose
from rlhf_cli.suggest import nearest
from rlhf_cli.yaml_loader import SAFE_LOADER

_HEADER = re.compile(r"^\s*#\s*@package\s+_global_\s*$")
_GLOBAL_GROUPS = ("exp", "debug")
"""Groups whose options set keys of the whole configuration, and so need the `@package _global_` header."""

_WORDS = re.compile(r"^(?P<words>(?:(?:override|optional)\s+)*)(?P<absolute>/?)(?P<group>[^@]*)(?P<at>@.*)?$")


@dataclass(frozen=True)
class Entry:
    """An entry of a defaults list: `group` is '' for a file in the same folder, `option` None unless it is plain text.

    `key` is the text before the option, as written.
    """

    line: int
    key: str
    group: str
    option: str | None
    is_override: bool
    has_package: bool


def missing_header(group: str, option: str) -> ConfigError | None:
    """Return an error if an experiment lacks the header saying that its keys are those of the whole configuration.

    Hydra reads the header only at the very beginning of a file; after any other comment it ignores it.
    """
    file = find(f"{group}/{option}") if group in _GLOBAL_GROUPS else None
    if file is None:
        return None
    first = ""
    almost: tuple[int, str] | None = None
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
        first = first or line.strip()
        if _HEADER.match(line) and first.startswith("#") and re.match(r"#\s*@", first):
            return None
        if line.strip() and not line.lstrip().startswith("#"):
            break
        if almost is None and re.search(r"@\s*p\w*k|_global_", line):
            almost = number, line.strip()
    return ConfigError(
        f"a file in {group} that does not speak of the whole configuration",
        where=str(Origin(file, 1)),
        got=f"line {almost[0]}: {almost[1]}"
        if almost is not None
        else f"no `# @package _global_`: all that stands in it would lie below a key {group!r}",
        expected="the comment below as the first line of the file, before every other comment",
        hint="# @package _global_",
    )


def defaults_problems(overrides: list[str]) -> list[ConfigError]:
    """Return the errors in the defaults lists of the experiments that these Hydra overrides choose."""
    problems: list[ConfigError] = []
    seen: set[Path] = set()
    for text in overrides:
        group, equals, option = text.lstrip("+").partition("=")
        if equals and group in APPENDED_GROUPS:
            _look(group, option, problems, seen)
    return problems


def _look(group: str, option: str, problems: list[ConfigError], seen: set[Path]) -> None:
    file = find(f"{group}/{option}")
    if file is None or file in seen:
        return
    seen.add(file)
    overridden = 0
    for entry in entries(file):
        problem = _entry_problem(entry, file, group, overridden)
        overridden = entry.line if entry.is_override else overridden
        if problem is not None:
            problems.append(problem)
        elif not entry.group and entry.option is not None:
            _look(group, entry.option, problems, seen)


def entries(file: Path) -> Iterator[Entry]:
    """Yield the entries of a file's defaults list. Raise yaml.YAMLError if the file is not YAML."""
    root = yaml.compose(file.read_text(encoding="utf-8"), Loader=SAFE_LOADER)
    listed = (
        [value for key, value in root.value if key.value == "defaults"] if isinstance(root, yaml.MappingNode) else []
    )
    for node in listed[0].value if listed and isinstance(listed[0], yaml.SequenceNode) else ():
        line = node.start_mark.line + 1
        if isinstance(node, yaml.ScalarNode):
            name = str(node.value).removeprefix("optional ").partition("@")[0].strip()
            if name != "_self_":
                folder, _, option = name.lstrip("/").rpartition("/")
                group = folder if name.startswith("/") else ""
                yield Entry(line, name[: len(name) - len(option)], group, option, False, "@" in str(node.value))
        elif isinstance(node, yaml.MappingNode) and node.value:
            key, value = node.value[0]
            match = _WORDS.match(str(key.value))
            assert match is not None  # the pattern may be empty, so it always matches
            chosen = str(value.value) if isinstance(value, yaml.ScalarNode) else "null"
            is_plain = re.fullmatch(r"[\w./-]+", chosen) and chosen != "null"
            yield Entry(
                line,
                f"{key.value}: ",
                match["group"].strip(),
                chosen if is_plain else None,
                "override" in match["words"],
                match["at"] is not None,
            )


def _entry_problem(entry: Entry, file: Path, own_group: str, overridden: int) -> ConfigError | None:
    known, where = groups(), str(Origin(file, entry.line))
    group = entry.group or own_group
    if group not in known:
        able = _defaults_of_train() if entry.is_override else list(known)
        close = nearest(group, able)
        return ConfigError(
            f"a defaults list names a group {group!r} that there is not",
            where=where,
            got=f"- {entry.key}{entry.option}",
            expected="one of " + ", ".join(able),
            hint=f"- {entry.key.replace(group, close, 1)}{entry.option}" if close else "rlhf list",
        )
    if entry.option is not None and entry.option not in known[group]:
        close = nearest(entry.option, known[group])
        return ConfigError(
            f"a defaults list names {entry.option!r}, and there is no such option of {group}",
            where=where,
            got=f"- {entry.key}{entry.option}",
            expected="one of " + ", ".join(known[group]),
            hint=f"- {entry.key}{close}" if close else f"rlhf list {group}",
        )
    if not entry.group or entry.has_package:
        return _behind_overrides(entry, where, overridden)
    in_train = group in _defaults_of_train()
    if entry.is_override and not in_train:
        return ConfigError(
            f"there is no {group} to override",
            where=where,
            got=f"- override /{group}: {entry.option}",
            expected=f"one of {', '.join(_defaults_of_train())}, of which there is one already",
            hint=f"- /{group}@{group}s.NAME: {entry.option}" if group == "reward" else f"- /{group}: {entry.option}",
        )
    if in_train and not entry.is_override:
        return ConfigError(
            f"there is a {group} already",
            where=where,
            got=f"- /{group}: {entry.option}",
            expected="the word `override` where another one is to take its place",
            hint=f"- override /{group}: {entry.option}",
        )
    return _behind_overrides(entry, where, overridden)


def _behind_overrides(entry: Entry, where: str, overridden: int) -> ConfigError | None:
    if entry.is_override or not overridden:
        return None
    return ConfigError(
        "an entry of a defaults list stands behind one that overrides",
        where=where,
        got=f"line {overridden} begins with `override`",
        expected="all entries with `override` at the end of the list",
        hint=Prose(f"put line {entry.line} above line {overridden}"),
    )


def _defaults_of_train() -> list[str]:
    """Return the groups that train.yaml chooses an option for: only these can be overridden."""
    return [entry.group for entry in entries(shipped_dir() / "train.yaml") if entry.group]
