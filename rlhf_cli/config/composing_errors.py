"""Explain why Hydra could not compose: words that are no overrides, defaults lists, references, shapes that differ.

Hydra itself only reports that something was not found or not overridden, without a line. So after a Hydra error, this
module reads the words and files again. It is imported only after something failed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

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

from rlhf_cli.config.conf_folders import APPENDED_GROUPS, Groups, find, groups, shipped_dir
from rlhf_cli.config.noting_loader import NotingLoader
from rlhf_cli.config.origins import Origin, Origins, keys_of_file
from rlhf_cli.config.schema.experiment import leaves, valid_keys
from rlhf_cli.config.suggestions import nearest_path
from rlhf_cli.errors import ConfigError, Prose, raise_any
from rlhf_cli.text.suggest import nearest
from rlhf_cli.text.yaml_loader import SAFE_LOADER, OversizedYaml

_GLOBAL_GROUPS = ("exp", "debug")
"""Groups whose options set keys of the whole configuration, and so need the `@package _global_` header."""
_HEADER = "# @package _global_"
_COMMAND_LINE = "command line"


def explain(error: Exception, loader: NotingLoader, config_name: str, overrides: list[str]) -> NoReturn:
    """Raise ConfigError, or Problems, that says what is wrong in the words or files; `error` if that is not known."""
    refuse_missing_headers(overrides)
    raise_any(_unreadable(overrides), because=error)
    raise_any(_defaults_problems(overrides), because=error)
    raise_any(_unlike_shapes(loader), because=error)
    raise_any(_absent_deletions(loader, config_name, overrides), because=error)
    if isinstance(error, ValueError):  # OmegaConf's, of `gate.by=x` where `gate` is a list
        raise ConfigError(
            "the configuration cannot be composed",
            where=_COMMAND_LINE,
            got=str(error),
            expected="keys that fit what is there: the entries of a list are numbered, from 0",
        ) from error
    raise error


def in_our_words(error: Exception) -> ConfigError:
    """Return ConfigError for any other error of YAML, Hydra or OmegaConf."""
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark
        twice = str(error.problem).startswith("found duplicate key")
        return ConfigError(
            "a configuration file is not valid YAML",
            where=f"{mark.name.removeprefix('file://')}:{mark.line + 1}" if mark else None,
            got=error.problem,
            expected="each key once" if twice else "`key: value` lines, indented with spaces",
        )
    # Hydra's message without its search path and without references to Python calls
    lines = str(error).split("Config search path:")[0].splitlines()
    kept = [line.rstrip() for line in lines if line.strip() and not re.match(r"\s*(full_key|object_type)", line)]
    said = "\n".join(kept) or type(error).__name__
    match = re.match(r"^In '?([\w/.-]+)'?: ", said)
    file = find(match[1]) if match is not None else None
    where = str(Origin(file)) if file is not None else None
    return ConfigError("the configuration cannot be composed", where=where, got=said, hint="rlhf list")


def refuse_oversized(file: Path) -> None:
    """Raise ConfigError for a YAML file that is small but huge with its aliases written out, or too deep."""
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
        return  # composing reports it, if the file is used


def refuse_missing_headers(overrides: list[str]) -> None:
    """Raise ConfigError for an experiment without the header that makes its keys those of the whole configuration.

    Hydra reads the header only at the very beginning of a file; after any other comment it ignores it.
    """
    chosen = [text.lstrip("+").partition("=") for text in overrides]
    files = [find(f"{group}/{option}") for group, _, option in chosen if group in _GLOBAL_GROUPS]
    raise_any(error for file in files if file is not None and (error := _missing_header(file)) is not None)


def _missing_header(file: Path) -> ConfigError | None:
    lines = file.read_text(encoding="utf-8").splitlines()
    first = next((line for line in lines if line.strip()), "")
    if re.match(r"\s*#\s*@package\s+_global_\s*$", first):
        return None
    comments = [f"line {number}: {line.strip()}" for number, line in enumerate(lines, 1) if line.startswith("#")]
    almost = next((line for line in comments if re.search(r"@\s*p\w*k|_global_", line)), None)
    return ConfigError(
        f"a file in {file.parent.name} that does not set keys of the whole configuration",
        where=str(Origin(file, 1)),
        got=almost or f"no `{_HEADER}`: its keys would go below a key {file.parent.name!r}",
        expected="the comment below as the first line of the file, before every other comment",
        hint=_HEADER,
    )


# Words that are no overrides

_CLOSING = {"[": "]", "{": "}", "(": ")"}
_PLAIN = re.compile(r"^[\w./+-]*$")
_ENTRY = re.compile(r"(?P<before>[\[{,]\s*(?:\w+\s*:)?\s*)(?P<text>[^\[\]{},]+?)(?P<behind>\s*(?=[,\]}]))")


def not_an_override(typed: Sequence[str], place: int, known: Groups) -> ConfigError:
    """Return an error for the word at this position of a command line, which is not an override, with a suggestion."""
    text = typed[place]
    return ConfigError(
        f"{text!r} is not an override",
        where=_COMMAND_LINE,
        expected="key=value, such as trainer.args.learning_rate=1e-5, or a group choice, such as +exp=quickstart",
        hint=_split_by_shell(typed, place) or _choice(text, known) or _with_its_value(typed, place),
    )


def _choice(text: str, known: Groups) -> str | None:
    """Return the group choice for a bare name: an experiment, or else any option with that name."""
    path = Path(text)
    if path.suffix in (".yaml", ".yml"):
        group = path.parent.name if path.parent.name in known else "exp"
        return f"{'+' if group == 'exp' else ''}{group}={path.stem}"
    holder = next((group for group in ("exp", *known) if text in known.get(group, ())), None)
    if holder is None:
        close = nearest(text, known.get("exp", {}))
        return f"+exp={close}" if close is not None else None
    return {"exp": f"+exp={text}", "reward": f"reward@rewards.{text}={text}"}.get(holder, f"{holder}={text}")


def _with_its_value(typed: Sequence[str], place: int) -> str:
    """Return `key=value` if the value was typed after a space, or `key=VALUE` without a value."""
    text = typed[place]
    behind = typed[place + 1] if place + 1 < len(typed) else ""
    if re.fullmatch(r"[A-Za-z_]\w*(\.\w+)*", text) is None:
        return "rlhf list exp"
    if behind and "=" not in behind and not behind.startswith(("-", "~", "+")):
        return f"{text}={behind}"
    return f"{text}=VALUE" if "." in text or text in valid_keys([]) else "rlhf list exp"


def _split_by_shell(typed: Sequence[str], place: int) -> str | None:
    """Return, in quotes, the words that were one before the shell split them at blanks inside brackets."""
    for first in range(place, -1, -1):
        if "=" in typed[first] and _missing_brackets(typed[first]):
            for last in range(place, len(typed)):
                whole = " ".join(typed[first : last + 1])
                if not _missing_brackets(whole):
                    return _in_quotes(_readable(whole) or whole)
    return None


def _readable(text: str) -> str | None:
    """Return an override that Hydra can parse, with its brackets closed or special characters quoted; else None."""
    key, equals, value = text.partition("=")
    missing = _missing_brackets(value)
    bare = value.replace('"', "").replace("'", "")
    candidates = (value + missing, _ENTRY.sub(_quoted, value + missing), bare + missing, _in_quotes(value.strip("'\"")))
    for whole in (f"{key}={candidate}" for candidate in candidates if equals):
        try:
            OverridesParser.create().parse_override(whole)
        except HydraException:
            continue
        return whole
    return None


def _quoted(match: re.Match[str]) -> str:
    text = match["text"].strip()
    is_plain = _PLAIN.match(text) is not None or text[:1] in "'\"$"
    return f"{match['before']}{text if is_plain else _in_quotes(text)}{match['behind']}"


def _in_quotes(text: str) -> str:
    return f"'{text}'" if "'" not in text else f'"{text}"'


def _missing_brackets(text: str) -> str:
    """Return the brackets that would close the open ones in a text; '' if all are closed."""
    missing = ""
    for sign in text:
        if sign in _CLOSING:
            missing = _CLOSING[sign] + missing
        elif missing.startswith(sign):
            missing = missing[1:]
    return missing


def _unreadable(overrides: list[str]) -> Iterator[ConfigError]:
    """Yield an error for every word that does not follow Hydra's grammar, suggesting missing quotes or brackets."""
    for text in overrides:
        try:
            OverridesParser.create().parse_override(text)
        except HydraException as error:
            typed = text.removeprefix("++")
            meant = _readable(typed)
            said = str(error).splitlines()[0].partition(": ++")[0].removeprefix("LexerNoViableAltException")
            yield ConfigError(
                "a value cannot be read",
                where=_COMMAND_LINE,
                got=f"{typed}\n{said}",
                expected="a list as [a,b], a dictionary as {a: 1}, a text with other signs in quotes within quotes",
                hint=_in_quotes(meant) if meant is not None else None,
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
                where=_COMMAND_LINE,
                got=text,
                expected="~KEY of a key that there is; `rlhf show` lists them",
                hint=f"'~{close}'" if close is not None else None,
            )
        elif equals:
            what, expected = f"{key} has another value than {value}", "~KEY alone, whatever its value"
            yield ConfigError(what, where=_COMMAND_LINE, got=text, expected=expected, hint=f"'~{key}'")


# Defaults lists

_WORDS = re.compile(r"^(?P<words>(?:(?:override|optional)\s+)*)/?(?P<group>[^@]*)(?P<at>@.*)?$")


@dataclass(frozen=True)
class _Entry:
    """An entry of a defaults list: `group` is '' for a file in the same folder, `option` None unless it is plain text.

    `key` is the text before the option, as written.
    """

    line: int
    key: str
    group: str
    option: str | None
    is_override: bool = False
    has_package: bool = False


def _entries(file: Path) -> Iterator[_Entry]:
    """Yield the entries of a file's defaults list. Raise yaml.YAMLError if the file is not YAML."""
    root = yaml.compose(file.read_text(encoding="utf-8"), Loader=SAFE_LOADER)
    pairs = root.value if isinstance(root, yaml.MappingNode) else []
    listed = next((value for key, value in pairs if key.value == "defaults"), None)
    for node in listed.value if isinstance(listed, yaml.SequenceNode) else ():
        line = node.start_mark.line + 1
        if isinstance(node, yaml.ScalarNode) and node.value != "_self_":
            name, at, _ = str(node.value).removeprefix("optional ").partition("@")
            folder, _, option = name.strip().lstrip("/").rpartition("/")
            group = folder if name.startswith("/") else ""
            yield _Entry(line, name.strip().removesuffix(option), group, option, has_package=bool(at))
        elif isinstance(node, yaml.MappingNode) and node.value:
            key, value = node.value[0]
            match: Any = _WORDS.match(str(key.value))  # the pattern may be empty, so it always matches
            chosen = str(value.value)
            is_plain = re.fullmatch(r"[\w./-]+", chosen) is not None and chosen != "null"
            is_override, has_package = "override" in match["words"], match["at"] is not None
            yield _Entry(
                line, f"{key.value}: ", match["group"].strip(), chosen if is_plain else None, is_override, has_package
            )


def _defaults_problems(overrides: list[str]) -> Iterator[ConfigError]:
    """Yield the errors in the defaults lists of the files chosen on the command line, and of those they build on."""
    seen: set[Path] = set()
    for group, _, option in (text.lstrip("+").partition("=") for text in overrides):
        if group in APPENDED_GROUPS:
            yield from _problems_of_file(group, option, seen)


def _problems_of_file(group: str, option: str, seen: set[Path]) -> Iterator[ConfigError]:
    file = find(f"{group}/{option}")
    if file is None or file in seen:
        return
    seen.add(file)
    last_override = 0
    for entry in _entries(file):
        problem = _entry_problem(entry, file, group, last_override)
        last_override = entry.line if entry.is_override else last_override
        if problem is not None:
            yield problem
        elif not entry.group and entry.option is not None:
            yield from _problems_of_file(group, entry.option, seen)


def _entry_problem(entry: _Entry, file: Path, own_group: str, last_override: int) -> ConfigError | None:
    known = groups()
    in_train = [one.group for one in _entries(shipped_dir() / "train.yaml") if one.group]
    group, typed = entry.group or own_group, f"- {entry.key}{entry.option}"
    fresh = f"- /{group}@{group}s.NAME: {entry.option}" if group == "reward" else f"- /{group}: {entry.option}"
    if group not in known:
        able = in_train if entry.is_override else list(known)
        close = nearest(group, able)
        what, expected = f"a defaults list names a group {group!r} that does not exist", "one of " + ", ".join(able)
        hint = f"- {entry.key.replace(group, close, 1)}{entry.option}" if close else "rlhf list"
    elif entry.option is not None and entry.option not in known[group]:
        close = nearest(entry.option, known[group])
        what = f"a defaults list names {entry.option!r}, and there is no such option of {group}"
        expected, hint = "one of " + ", ".join(known[group]), f"- {entry.key}{close}" if close else f"rlhf list {group}"
    elif entry.group and not entry.has_package and entry.is_override and group not in in_train:
        what, expected = f"there is no {group} to override", f"one of {', '.join(in_train)}, which train.yaml chooses"
        hint = fresh
    elif entry.group and not entry.has_package and not entry.is_override and group in in_train:
        what, expected = f"there is a {group} already", "the word `override`, to replace it"
        hint = f"- override /{group}: {entry.option}"
    elif last_override and not entry.is_override:
        what, typed = "an entry of a defaults list follows one that overrides", f"`override` in line {last_override}"
        expected = "all entries with `override` at the end of the list"
        hint = Prose(f"put line {entry.line} above line {last_override}")
    else:
        return None
    return ConfigError(what, where=str(Origin(file, entry.line)), got=typed, expected=expected, hint=hint)


# Shapes that differ between files

_SHAPES: dict[type[yaml.Node], str] = {yaml.SequenceNode: "a list", yaml.MappingNode: "keys with values"}


def _unlike_shapes(loader: NotingLoader) -> Iterator[ConfigError]:
    """Yield an error for every key that is a list in one of the merged files and a mapping in another.

    A list replaces another list, and a mapping is merged into another mapping.
    """
    seen: dict[str, tuple[str, Origin]] = {}
    for default in loader.merged:
        file = find(default.config_path) if default.config_path else None
        for key, line, node in keys_of_file(file, default.package or "") if file is not None else ():
            shape = _SHAPES.get(type(node))
            if file is None or shape is None:
                continue
            before = seen.get(key)
            if before is not None and before[0] != shape:
                yield ConfigError(
                    f"{key} is {before[0]} in one file and {shape} in another, which cannot be merged",
                    where=f"{key} ({Origin(file, line)})",
                    got=f"{shape}; {before[0]} in {before[1]}",
                    expected=f"{before[0]} here too" + (", to replace the list" if before[0] == "a list" else ""),
                )
            seen[key] = shape, Origin(file, line)


# References, `${...}`

_RESOLVERS = ("oc.env", "oc.select", "oc.decode", "oc.create", "oc.dict.keys", "oc.dict.values", "oc.deprecated")
_REFERENCE = re.compile(r"\$\{\s*(?P<dots>\.*)(?P<key>[^{}:]+?)\s*\}")
_ENVIRONMENT = re.compile(r"\$\{oc\.env:\s*(?P<name>[^{}:,\s]+)")


def explain_references(error: Exception, config: DictConfig, origins: Origins) -> None:
    """Raise ConfigError, or Problems, for all values of a composed configuration that refer to nothing."""
    raise_any(_interpolation_problems(config, origins), because=error)


def _interpolation_problems(config: DictConfig, origins: Origins) -> Iterator[ConfigError]:
    entries = dict(leaves(OmegaConf.to_container(config, resolve=False)))
    for key, text in entries.items():
        if not isinstance(text, str) or "${" not in text:
            continue
        try:
            # in OmegaConf's syntax, list indices are in brackets
            OmegaConf.select(config, re.sub(r"\.(\d+)(?=\.|$)", r"[\1]", key), throw_on_missing=False)
        except InterpolationToMissingValueError:
            continue  # the value is reported as missing elsewhere
        except OmegaConfBaseException as problem:
            yield _reference_problem(key, text, problem, origins.where(key), list(entries))


def _reference_problem(key: str, text: str, error: Exception, where: str, keys: list[str]) -> ConfigError:
    if isinstance(error, InterpolationKeyError):
        return _no_such_key(key, text, where, keys)
    if isinstance(error, UnsupportedInterpolationType):
        resolver = re.search(r"\$\{\s*([\w.]+)\s*:", text)
        close = nearest(resolver[1], _RESOLVERS) if resolver else None
        return ConfigError(
            f"{key} uses a resolver that does not exist",
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
    return ConfigError(
        f"{key} cannot be {'read' if isinstance(error, GrammarParseError) else 'resolved'}",
        where=where,
        got=f"{text}\n{str(error).splitlines()[0]}",
        expected="${KEY} for another key's value; a text that holds ${ as \\${",
    )


def _no_such_key(key: str, text: str, where: str, keys: list[str]) -> ConfigError:
    got, hint = text, None
    for match in _REFERENCE.finditer(text):
        depth, parents = len(match["dots"]), key.split(".")
        meant = ".".join([*(parents[:-depth] if depth else []), match["key"]])
        if re.sub(r"\[(\w+)\]", r".\1", meant) not in keys:
            close = nearest_path(meant, keys)
            got = f"{text}, which is {meant}" if depth else text
            hint = text.replace(match[0], f"${{{close}}}") if close else "rlhf show"
            break
    expected = "${KEY} with the full name of another key"
    return ConfigError(f"{key} refers to a key that does not exist", where=where, got=got, expected=expected, hint=hint)
