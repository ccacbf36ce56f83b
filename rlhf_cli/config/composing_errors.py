"""Explain why Hydra could not compose: words that are no overrides, missing headers, references that lead nowhere.

Hydra itself only reports that something was not found or not overridden, without a line. So after a Hydra error, this
module reads the words and files again. It is imported only after something failed.
"""

from __future__ import annotations

import os
import re
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import InterpolationKeyError, InterpolationToMissingValueError, OmegaConfBaseException

from rlhf_cli.config.conf_folders import Groups, find, groups, search_dirs, shipped_dir
from rlhf_cli.config.defaults_lists import defaults_problems
from rlhf_cli.config.origins import Origin, Origins
from rlhf_cli.config.schema.experiment import valid_keys
from rlhf_cli.config.schema_errors import NAMED_REWARDS, named_rewards
from rlhf_cli.config.suggestions import nearest_path
from rlhf_cli.errors import ConfigError, raise_any
from rlhf_cli.tables.former_names import VALUE_SYNONYMS
from rlhf_cli.text.json_values import leaves
from rlhf_cli.text.regular_files import read_regular
from rlhf_cli.text.suggest import nearest
from rlhf_cli.text.yaml_loader import SAFE_LOADER, OversizedYaml

_GLOBAL_GROUPS = ("exp", "debug")
"""Groups whose options set keys of the whole configuration, and so need the `@package _global_` header."""
_HEADER = "# @package _global_"
_LARGEST = 8 << 20
_MOST_REFERENCES = 50
_IN_A_CIRCLE = 50
_COMMAND_LINE = "command line"
_BY_PATH = {"model": "local", "data": "file"}
"""Maps a group to its option with a `path` to the user's own model or data."""


def explain(
    error: Exception, overrides: list[str], of_files: Origins, composed: Callable[[list[str]], DictConfig]
) -> NoReturn:
    """Raise ConfigError, or Problems, that says what is wrong in the words or files; `error` if that is not known.

    `of_files` are the origins of what the files set, as far as they were merged.
    """
    raise_any(_bad_files(), because=error)
    if isinstance(error, RecursionError | AssertionError):
        raise in_our_words(error) from error
    raise_any(_unreadable(overrides), because=error)
    for file in () if of_files.shapes else (shipped_dir() / "train.yaml", *_chosen_files(overrides)):
        of_files.add_file(file, "")  # nothing was merged
    raise_any([*file_problems(overrides), *_unlike_shapes(overrides, of_files)], because=error)
    raise_any(_several_values(overrides), because=error)
    raise_any(_absent_deletions(overrides, composed), because=error)
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
    raise_any(_bad_files(), because=error)
    if isinstance(error, RecursionError | AssertionError):
        return _without_end(error)
    # Hydra's message without its search path and without references to Python calls
    lines = str(error).split("Config search path:")[0].splitlines()
    kept = [line.rstrip() for line in lines if line.strip() and not re.match(r"\s*(full_key|object_type)", line)]
    said = "\n".join(kept) or type(error).__name__
    match = re.match(r"^In '?([\w/.-]+)'?: ", said)
    file = find(match[1]) if match is not None else None
    where = str(Origin(file)) if file is not None else None
    return ConfigError("the configuration cannot be composed", where=where, got=said, hint="rlhf list")


def _bad_files() -> Iterator[ConfigError]:
    """Yield an error for each configuration file of the user that is no UTF-8 text, and for references without end."""
    for file in (one for folder in search_dirs()[:-1] for one in sorted(folder.rglob("*.yaml"))):
        got, line = "", None
        try:
            lines = read_regular(file, _LARGEST).split("\n")
            line = next((at for at, one in enumerate(lines, 1) if "\0" in one or one.count("${") > _MOST_REFERENCES), 0)
            if line:
                got = "a NUL: UTF-16, or damaged" if "\0" in lines[line - 1] else "too many references in one value"
        except UnicodeDecodeError as error:
            line = error.object.count(b"\n", 0, error.start) + 1
            got = f"byte {error.object[error.start]:#04x}, which is no UTF-8"
        except OSError as error:
            got = str(error.strerror)
        if got:
            where, expected = str(Origin(file, line)), "a file in UTF-8 (iconv -f latin1 -t utf-8 OLD > NEW)"
            yield ConfigError("a configuration file cannot be read", where=where, got=got, expected=expected)


def _without_end(error: Exception) -> ConfigError:
    """Return the error for defaults that include each other, with the files that Hydra was reading, and the like."""
    roots = [frame.f_locals.get("root") for frame, _ in traceback.walk_tb(error.__traceback__)]
    nodes = [node for root in roots if (node := getattr(root, "node", None)) is not None][-_IN_A_CIRCLE:]
    paths = list(dict.fromkeys(str(node.get_config_path()) for node in nodes))
    names = [path.rpartition("/")[2] for path in (*paths[1:], *paths[:1])]
    places = [*zip(map(find, paths), names, strict=True)]
    if isinstance(error, AssertionError):
        places = [(file, "${") for folder in search_dirs()[:-1] for file in sorted(folder.rglob("*.yaml"))]
    shown = []
    for file, name in places:
        lines = enumerate(file.read_text(encoding="utf-8").splitlines(), 1) if file else ()
        line = next((number for number, text in lines if text.strip().startswith("-") and name in text), None)
        shown += [str(Origin(file, line))] if line else []
    expected = "defaults that do not include each other, choices that are names, few references in one value"
    what, where = "the configuration cannot be composed", " -> ".join(shown) or None
    return ConfigError(what, where=where, got=type(error).__name__, expected=expected)


def refuse_oversized(file: Path) -> None:
    """Raise ConfigError for a YAML file that is small but huge with its aliases written out, or too deep."""
    try:
        yaml.compose(read_regular(file, _LARGEST), Loader=SAFE_LOADER)
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


def file_problems(overrides: list[str]) -> list[ConfigError]:
    """Return what is wrong with the chosen experiments' headers and defaults lists.

    The header makes a file's keys those of the whole configuration. Hydra reads it only at the very beginning of a
    file; after any other comment it ignores it.
    """
    headers = [error for file in _chosen_files(overrides) if (error := _missing_header(file)) is not None]
    return [*headers, *defaults_problems(overrides)]


def _chosen_files(overrides: list[str]) -> list[Path]:
    chosen = [text.lstrip("+").partition("=") for text in overrides]
    files = [find(f"{group}/{option}") for group, _, option in chosen if group in _GLOBAL_GROUPS]
    return [file for file in files if file is not None]


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


def not_an_override(typed: Sequence[str], place: int, known: Groups) -> ConfigError:
    """Return an error for the word at this position of a command line, which is not an override, with a suggestion."""
    text = typed[place]
    return ConfigError(
        f"{text!r} is not an override",
        where=_COMMAND_LINE,
        expected="key=value, such as trainer.args.learning_rate=1e-5, or a group choice, such as +exp=quickstart",
        hint=_split_by_shell(typed, place) or _choice(text, known) or _with_its_value(typed, place),
    )


def no_such_option(key: str, value: str, options: Mapping[str, Path]) -> ConfigError:
    """Return an error for a group choice with an option that does not exist, or for a reward without a name."""
    group, got = key.partition("@")[0], f"{key}={value}"
    option = next((option for option in value.split(",") if option not in options), None)
    if option is None:
        what, hint = "a ready-made reward needs a name of your own", f"reward@rewards.NAME={value}"
        return ConfigError(what, where=_COMMAND_LINE, got=got, hint=hint)
    close = VALUE_SYNONYMS.get(group, {}).get(option.lower())
    close = close if close in options else nearest(option, options)
    is_own = group in _BY_PATH and ("/" in option or ":" in option or Path(option).exists())
    own = f"{group}={_BY_PATH[group]} {group}.path={option}" if is_own else f"rlhf list {group}"
    return ConfigError(
        f"there is no {group} named {option!r}",
        where=_COMMAND_LINE,
        got=got,
        expected="one of " + ", ".join(options),
        hint=f"{key}={close}" if close else own,
    )


def no_such_group(key: str, text: str) -> ConfigError:
    """Return an error for a choice of a group that does not exist, or for one of Hydra's own settings."""
    group, known = key.partition("@")[0], groups()
    if re.match(r"hydra\b", group) is None:
        what, expected = f"unknown group {group!r}", "one of " + ", ".join(known)
        return ConfigError(what, where=_COMMAND_LINE, got=text, expected=expected, hint=nearest(group, known))
    return ConfigError(
        "Hydra only composes the configuration; it runs nothing here",
        where=_COMMAND_LINE,
        got=text,
        expected="run.root and run.name for the run folder, -m for a sweep, -j N for runs at a time",
        advice="leave it out; docs/how-to/sweeps.md says how sweeps are run",
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


def _several_values(overrides: list[str]) -> Iterator[ConfigError]:
    """Yield an error for every word that gives a key several values, which only a sweep accepts."""
    for override in OverridesParser.create().parse_overrides(overrides):
        if override.is_sweep_override():
            typed = str(override.input_line).removeprefix("++")
            key = typed.partition("=")[0]
            yield ConfigError(
                "several values for one key are a sweep: a run for each",
                where=_COMMAND_LINE,
                got=typed,
                expected=f"one value here; a list is '{key}=[a,b]', a text with a comma \"{key}='a,b'\"",
                hint=f"rlhf train -m ... '{typed}'",
            )


def _unreadable(overrides: list[str]) -> Iterator[ConfigError]:
    """Yield an error for every word that does not follow Hydra's grammar."""
    for text in overrides:
        try:
            OverridesParser.create().parse_override(text)
        except HydraException as error:
            typed = text.removeprefix("++")
            said = str(error).splitlines()[0].partition(": ++")[0].removeprefix("LexerNoViableAltException")
            yield ConfigError(
                "a value cannot be read",
                where=_COMMAND_LINE,
                got=f"{typed}\n{said}",
                expected="a list as [a,b], a dictionary as {a: 1}, a text with other signs in quotes within quotes",
                hint=_readable(typed),
            )


def _unlike_shapes(overrides: list[str], of_files: Origins) -> Iterator[ConfigError]:
    """Yield an error for every key that is a list in one place and a mapping in an earlier one, or the reverse."""
    typed: dict[str, object] = {}
    for override in OverridesParser.create().parse_overrides([text for text in overrides if text.startswith("++")]):
        typed[override.key_or_group] = value = override.value()
        shape = yaml.SequenceNode if isinstance(value, list) else yaml.MappingNode if isinstance(value, dict) else None
        of_files.note_shape(override.key_or_group, shape or yaml.ScalarNode, Origin(None))
    for key, before, now in of_files.unlike:
        has, had = ("a list", "a mapping")[:: 1 if of_files.shapes[key] is yaml.SequenceNode else -1]
        expected, hint = f"{had}, as in {before}", None
        if key == "rewards" and has == "a list":
            tree = typed if now.file is None else yaml.load(now.file.read_text(encoding="utf-8"), SAFE_LOADER)
            expected, hint = NAMED_REWARDS, named_rewards(tree[key], is_typed=now.file is None)
        yield ConfigError(f"{key} is {has}, not {had}", where=f"{key} ({now})", expected=expected, hint=hint)


_CLOSING = {"[": "]", "{": "}"}
_ENTRY = re.compile(r"(?<=[\[{,:])\s*(?P<text>[^\[\]{},:'\"]*[^\w\s.,:\[\]{}'\"+/-][^\[\]{},:'\"]*?)\s*(?=[,\]}])")
"""An entry of a list or dictionary with a sign that wants quotes."""


def _readable(text: str) -> str | None:
    """Return, quoted for a shell, an override with its brackets closed and its entries quoted, if Hydra reads that."""
    closed = text + _missing_brackets(text)
    for whole in (closed, _ENTRY.sub(r" '\g<text>'", closed)):
        try:
            OverridesParser.create().parse_override(whole)
        except HydraException:
            continue
        return f'"{whole}"' if "'" in whole else f"'{whole}'"
    return None


def _missing_brackets(text: str) -> str:
    """Return the brackets that would close the open ones in a text; '' if all are closed."""
    missing = ""
    for sign in text:
        missing = _CLOSING[sign] + missing if sign in _CLOSING else missing.removeprefix(sign)
    return missing


def _split_by_shell(typed: Sequence[str], place: int) -> str | None:
    """Return, in quotes, the words that were one before the shell split them at blanks inside brackets."""
    opened = [first for first in range(place) if "=" in typed[first] and _missing_brackets(typed[first])]
    return _readable(" ".join(typed[opened[-1] : place + 1])) if opened else None


def _absent_deletions(overrides: list[str], composed: Callable[[list[str]], DictConfig]) -> Iterator[ConfigError]:
    """Yield an error for every `~key` whose key does not exist in the configuration composed without deletions."""
    deletions = [text for text in overrides if text.startswith("~")]
    if not deletions:
        return
    config = composed([text for text in overrides if text not in deletions])
    keys = [key for key, _ in leaves(OmegaConf.to_container(config, resolve=False))]
    for text in deletions:
        key, _, value = text[1:].partition("=")
        close = nearest_path(key, keys)
        if key not in keys or value:
            yield ConfigError(
                f"{key} has another value than {value}"
                if key in keys
                else f"{key} cannot be left out: it is not there",
                where=_COMMAND_LINE,
                got=text,
                expected="~KEY of a key that there is; `rlhf show` lists them",
                hint=f"'~{close}'" if close is not None else None,
            )


# References, `${...}`

_REFERENCE = re.compile(r"\$\{\s*(?P<dots>\.*)(?P<key>[^{}:]+?)\s*\}")
_ENVIRONMENT = re.compile(r"\$\{oc\.env:\s*(?P<name>[^{}:,\s]+)")


def reference_problems(config: DictConfig, origins: Origins) -> Iterator[ConfigError]:
    """Yield an error for every value of a composed configuration that refers to nothing."""
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
    variable = _ENVIRONMENT.search(text)
    if variable is not None and variable["name"] not in os.environ:
        return ConfigError(
            f"the environment variable {variable['name']} is not set",
            where=where,
            got=text,
            expected=f"the variable, or a value for where it is not set: ${{oc.env:{variable['name']},VALUE}}",
            hint=f"export {variable['name']}=...",
        )
    if not isinstance(error, InterpolationKeyError):
        return ConfigError(
            f"{key} cannot be resolved",
            where=where,
            got=f"{text}\n{str(error).splitlines()[0]}",
            expected="${KEY} for another key's value, ${oc.env:NAME} for the environment's; a text with ${ as \\${",
        )
    hint = "rlhf show"
    for match in _REFERENCE.finditer(text):
        depth = len(match["dots"])
        meant = ".".join([*(key.split(".")[:-depth] if depth else []), match["key"]])
        if re.sub(r"\[(\w+)\]", r".\1", meant) not in keys and (close := nearest_path(meant, keys)):
            hint = text.replace(match[0], f"${{{close}}}")
    expected = "${KEY} with the full name of another key"
    return ConfigError(
        f"{key} refers to a key that does not exist", where=where, got=text, expected=expected, hint=hint
    )
