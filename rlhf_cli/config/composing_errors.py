"""Explain why Hydra could not compose: missing files, defaults lists, interpolations, shapes that differ.

For such a mistake Hydra only reports that something was not found or not overridden, without a line. So after a Hydra
error, this module reads the lists again: those of the files in `exp` or `debug` and of the files they build on.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import (
    GrammarParseError,
    InterpolationKeyError,
    InterpolationToMissingValueError,
    OmegaConfBaseException,
    UnsupportedInterpolationType,
)

from rlhf_cli.config.conf_folders import APPENDED_GROUPS, find, groups, shipped_dir, user_dir
from rlhf_cli.config.nearest import nearest_path
from rlhf_cli.config.noting_loader import NotingLoader
from rlhf_cli.config.origins import Origin, Origins
from rlhf_cli.config.overrides import in_shell_quotes, readable
from rlhf_cli.config.schema.experiment import leaves
from rlhf_cli.errors import ConfigError, Problems, Prose, UserError
from rlhf_cli.text.suggest import nearest
from rlhf_cli.text.yaml_loader import SAFE_LOADER, OversizedYaml

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


_SHAPE_WORDS = {"list": "a list", "mapping": "keys with values"}


def unlike_shapes(files: Iterable[tuple[Path, str]]) -> Iterator[ConfigError]:
    """Yield an error for every key that is both a list and a mapping. `files` are (file, package) in merge order.

    A list replaces another list, and a mapping is merged into another mapping, so the later file can use the shape of
    the earlier one.
    """
    seen: dict[str, tuple[str, Origin]] = {}
    for file, package in files:
        with file.open(encoding="utf-8") as stream:
            root = yaml.compose(stream, Loader=SAFE_LOADER)
        if not isinstance(root, yaml.MappingNode):
            continue
        for key, shape, line in _shapes(root, package):
            before = seen.get(key)
            if before is not None and before[0] != shape:
                yield ConfigError(
                    f"{key} is {_SHAPE_WORDS[before[0]]} in one file and {_SHAPE_WORDS[shape]} in another, "
                    "which cannot be merged",
                    where=f"{key} ({Origin(file, line)})",
                    got=f"{_SHAPE_WORDS[shape]}; {_SHAPE_WORDS[before[0]]} in {before[1]}",
                    expected=f"{_SHAPE_WORDS[before[0]]} here too"
                    + (", which takes the place of the other list" if before[0] == "list" else ""),
                )
            seen[key] = shape, Origin(file, line)


def _shapes(node: yaml.MappingNode, prefix: str) -> Iterator[tuple[str, str, int]]:
    """Yield (dotted key, "list" or "mapping", line) for every list and mapping inside a mapping."""
    for key_node, value_node in node.value:
        name = str(key_node.value)
        if not prefix and name == "defaults":
            continue
        key, line = f"{prefix}.{name}" if prefix else name, key_node.start_mark.line + 1
        if isinstance(value_node, yaml.SequenceNode):
            yield key, "list", line
        elif isinstance(value_node, yaml.MappingNode):
            yield key, "mapping", line
            yield from _shapes(value_node, key)


_IN_FILE = re.compile(r"^In '?(?P<path>[\w/.-]+)'?: ")


def composed(loader: NotingLoader, config_name: str, overrides: list[str]) -> tuple[DictConfig, dict[str, str | None]]:
    """Return what the loader composes. Raise ConfigError, or Problems, instead of Hydra's errors."""
    _refuse_oversized_files()
    headers = [error for group, option in _chosen(overrides) if (error := missing_header(group, option)) is not None]
    raise_any(headers)
    try:
        return loader.compose(config_name, overrides)
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        problems: list[UserError] = [*_unreadable(overrides)]
        problems = problems or [*defaults_problems(overrides)]
        problems = problems or [*unlike_shapes(_files(loader))]
        problems = problems or [*_absent_deletions(loader, config_name, overrides)]
        raise_any(problems, because=error)
        if isinstance(error, ValueError):  # OmegaConf's, of `gate.by=x` where `gate` is a list
            raise ConfigError(
                "the configuration cannot be composed",
                where="command line",
                got=str(error),
                expected="keys that fit what is there: the entries of a list are numbered, from 0",
            ) from error
        raise


def _refuse_oversized_files() -> None:
    """Raise ConfigError for a user's file that Hydra would take hours to read."""
    user = user_dir()
    for file in sorted(user.rglob("*.yaml")) if user is not None else ():
        try:
            yaml.compose(file.read_text(encoding="utf-8"), Loader=SAFE_LOADER)
        except OversizedYaml as error:
            line = error.problem_mark.line + 1 if error.problem_mark is not None else None
            raise ConfigError(
                "a configuration file becomes too large to read",
                where=str(Origin(file, line)),
                got=error.problem,
                expected="few aliases, none within what it names, and at most 100 levels",
            ) from None
        except (yaml.YAMLError, OSError, UnicodeDecodeError):
            continue


@contextmanager
def teaching_errors() -> Iterator[None]:
    """Raise ConfigError instead of the remaining errors of YAML, Hydra and OmegaConf in the `with` block."""
    try:
        yield
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"{mark.name.removeprefix('file://')}:{mark.line + 1}" if mark else None
        twice = str(error.problem).startswith("found duplicate key")
        raise ConfigError(
            "a configuration file is not valid YAML",
            where=where,
            got=error.problem,
            expected="each key once" if twice else "`key: value` lines, indented with spaces",
        ) from error
    except (HydraException, OmegaConfBaseException) as error:
        said = _plain(error)
        match = _IN_FILE.match(said)
        file = find(match["path"]) if match is not None else None
        raise ConfigError(
            "the configuration cannot be composed",
            where=str(Origin(file)) if file is not None else None,
            got=said,
            hint="rlhf list",
        ) from error


def raise_any(problems: Sequence[UserError], *, because: Exception | None = None) -> None:
    """Raise Problems, or the error itself if there is exactly one; do nothing for an empty list."""
    if len(problems) == 1:
        raise problems[0] from because
    if problems:
        raise Problems(list(problems)) from because


def _chosen(overrides: list[str]) -> Iterator[tuple[str, str]]:
    for text in overrides:
        group, equals, option = text.lstrip("+").partition("=")
        if equals and group in APPENDED_GROUPS:
            yield group, option


def _files(loader: NotingLoader) -> Iterator[tuple[Path, str]]:
    for default in loader.merged:
        if default.config_path and (file := find(default.config_path)) is not None:
            yield file, default.package or ""


def _unreadable(overrides: list[str]) -> Iterator[ConfigError]:
    """Yield an error for every word that does not follow Hydra's grammar, suggesting missing quotes or brackets."""
    parser = OverridesParser.create()
    for text in overrides:
        try:
            parser.parse_override(text)
        except HydraException as error:
            typed = text.removeprefix("++")
            meant = readable(typed)
            yield ConfigError(
                "a value cannot be read",
                where="command line",
                got=f"{typed}\n{_without_pointer(error)}",
                expected="a list as [a,b], a dictionary as {a: 1}, a text with other signs in quotes within quotes",
                hint=in_shell_quotes(meant) if meant is not None else None,
            )


def _absent_deletions(loader: NotingLoader, config_name: str, overrides: list[str]) -> Iterator[ConfigError]:
    """Yield an error for every `~key` whose key does not exist in the configuration composed without deletions."""
    deletions = [text for text in overrides if text.startswith("~")]
    if not deletions:
        return
    config, _ = loader.compose(config_name, [text for text in overrides if text not in deletions])
    keys = [key for key, _ in leaves(OmegaConf.to_container(config, resolve=False))]
    for text in deletions:
        key, equals, value = text[1:].partition("=")
        if key not in keys:
            close = nearest_path(key, keys)
            yield ConfigError(
                f"{key} cannot be left out: it is not there",
                where="command line",
                got=text,
                expected="~KEY of a key that there is; `rlhf show` lists them",
                hint=f"'~{close}'" if close is not None else None,
            )
        elif equals:
            yield ConfigError(
                f"{key} has another value than {value}",
                where="command line",
                got=text,
                expected="~KEY alone, whatever its value",
                hint=f"'~{key}'",
            )


def _without_pointer(error: Exception) -> str:
    """Return the first line of a parser's message; the other lines only point into it."""
    return str(error).splitlines()[0].partition(": ++")[0].removeprefix("LexerNoViableAltException")


def _plain(error: Exception) -> str:
    """Return Hydra's message without references to Python calls and without its search path."""
    text = str(error).split("Config search path:")[0]
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    kept = [line for line in lines if not re.match(r"\s*(full_key|object_type)", line)]
    return "\n".join(kept) or type(error).__name__


_RESOLVERS = ("oc.env", "oc.select", "oc.decode", "oc.create", "oc.dict.keys", "oc.dict.values", "oc.deprecated")
_REFERENCE = re.compile(r"\$\{\s*(?P<dots>\.*)(?P<key>[^{}:]+?)\s*\}")
_ENVIRONMENT = re.compile(r"\$\{oc\.env:\s*(?P<name>[^{}:,\s]+)")


def interpolation_problems(config: DictConfig, origins: Origins) -> Iterator[ConfigError]:
    """Yield an error for every value of a composed configuration that refers to something that does not exist."""
    raw = OmegaConf.to_container(config, resolve=False)
    entries = dict(leaves(raw))
    for key, text in entries.items():
        if not isinstance(text, str) or "${" not in text:
            continue
        try:
            OmegaConf.select(config, _path_of(key, entries), throw_on_missing=False)
        except InterpolationToMissingValueError:
            continue  # the value is reported as missing elsewhere
        except OmegaConfBaseException as error:
            yield _told(key, text, error, origins, list(entries))


def _path_of(key: str, entries: dict[str, object]) -> str:
    """Return a key in OmegaConf's syntax: list indices in brackets."""
    path, shown = "", ""
    for part in key.split("."):
        is_place = isinstance(entries.get(path), list)
        shown += f"[{part}]" if is_place else f".{part}" if shown else part
        path = f"{path}.{part}" if path else part
    return shown


def _told(key: str, text: str, error: Exception, origins: Origins, keys: list[str]) -> ConfigError:
    where = origins.where(key)
    if isinstance(error, InterpolationKeyError):
        return _no_such_key(key, text, where, keys)
    if isinstance(error, UnsupportedInterpolationType):
        resolver = re.search(r"\$\{\s*([\w.]+)\s*:", text)
        close = nearest(resolver[1], _RESOLVERS) if resolver else None
        return ConfigError(
            f"{key} asks a resolver that there is not",
            where=where,
            got=text,
            expected="${KEY} for another key's value, or ${oc.env:NAME} for the environment's",
            hint=text.replace(resolver[1], close, 1) if resolver and close else None,
        )
    variable = _ENVIRONMENT.search(text)
    if variable is not None and variable["name"] not in os.environ:
        name = variable["name"]
        close = nearest(name, os.environ) if len(name) > 3 else None
        return ConfigError(
            f"the environment variable {name} is not set",
            where=where,
            got=text,
            expected=f"the variable, or a value for where it is not set: ${{oc.env:{name},VALUE}}",
            hint=f"export {name}=...{f', or ${{oc.env:{close}}}' if close else ''}",
        )
    what = "cannot be read" if isinstance(error, GrammarParseError) else "cannot be resolved"
    return ConfigError(
        f"{key} {what}",
        where=where,
        got=f"{text}\n{str(error).splitlines()[0]}",
        expected="${KEY} for another key's value; a text that holds ${ as \\${",
    )


def _no_such_key(key: str, text: str, where: str, keys: list[str]) -> ConfigError:
    for match in _REFERENCE.finditer(text):
        parents = key.split(".")
        depth = len(match["dots"])
        above = parents[: len(parents) - depth] if depth else []
        meant = ".".join([*above, match["key"]])
        if re.sub(r"\[(\w+)\]", r".\1", meant) in keys:
            continue
        close = nearest_path(meant, keys)
        return ConfigError(
            f"{key} refers to a key that there is not",
            where=where,
            got=text + (f", which is {meant}" if depth else ""),
            expected="${KEY} with the full name of another key" if not depth else "a key that there is",
            hint=text.replace(match[0], f"${{{close}}}") if close else "rlhf show",
        )
    return ConfigError(f"{key} refers to a key that there is not", where=where, got=text)
