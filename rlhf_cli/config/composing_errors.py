"""Explain why Hydra could not compose: invalid words, missing headers, references to keys that do not exist.

Hydra itself only reports that something was not found or not overridden, without a line. So after a Hydra error, this
module reads the words and files again. It is imported only after something failed.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import InterpolationKeyError, InterpolationToMissingValueError, OmegaConfBaseException

from rlhf_cli.config.conf_folders import APPENDED_GROUPS, Groups, find, groups, search_dirs, shipped_dir
from rlhf_cli.config.origins import COMMAND_LINE, Origin, Origins
from rlhf_cli.config.schema.experiment import valid_keys
from rlhf_cli.config.schema_errors import NAMED_REWARDS, named_rewards
from rlhf_cli.config.suggestions import nearest_path
from rlhf_cli.errors import ConfigError, raise_any
from rlhf_cli.tables.former_names import VALUE_SYNONYMS
from rlhf_cli.tables.trl_trainers import UNSUPPORTED
from rlhf_cli.text.json_values import leaves
from rlhf_cli.text.regular_files import SAFE_LOADER, OversizedYaml, read_regular
from rlhf_cli.text.suggest import nearest

_GLOBAL_GROUPS = ("exp", "debug")
"""Groups whose options set keys of the whole configuration, and so need the `@package _global_` header."""
_HEADER = "# @package _global_"
_TYPOGRAPHIC = str.maketrans(dict.fromkeys("\u2018\u2019\u201c\u201d", "") | dict.fromkeys("\u2212\u2013", "-"))
_LARGEST = 8 << 20
_MOST_REFERENCES = 50
_BY_PATH = {"model": "local", "data": "file"}
"""Group -> its option with a `path` to the user's own model or data."""
LETTERS_OF_A_KEY = "a key of the letters a-z and A-Z, digits, '_', '-', '.' and '@'"
_NOT_COMPOSED, _NOT_READ = "the configuration cannot be composed", "a configuration file cannot be read"


def explain(
    error: Exception, overrides: list[str], of_files: Origins, composed: Callable[[list[str]], DictConfig]
) -> NoReturn:
    """Raise ConfigError, or Problems, for the mistakes in the words and files; raise `error` again if there are none.

    `of_files` holds the origins in the files that were merged before the error.
    """
    raise_any(_bad_files(), because=error)
    if isinstance(error, RecursionError | AssertionError):
        raise _without_end() from error
    raise_any(_word_problems(overrides), because=error)
    for file in () if of_files.shapes else (shipped_dir() / "train.yaml", *_chosen_files(overrides)):
        of_files.add_file(file, "")  # nothing was merged
    shapes = list(_unlike_shapes(overrides, of_files))
    raise_any([*file_problems(overrides), *of_files.chosen_twice, *shapes], because=error)
    raise_any(_absent_deletions(overrides, composed), because=error)
    if isinstance(error, ValueError | TypeError):  # OmegaConf's, of `gate.by=x` where `gate` is a list
        expected = "the number of an entry for a list (from 0), the name of a key for a mapping"
        part = re.search(r"invalid literal for int\(\) .*: '(.*)'", str(error))
        got = f"{part[1]!r}, of a list" if part else str(error)
        raise ConfigError(_NOT_COMPOSED, where=COMMAND_LINE, got=got, expected=expected) from error
    raise error


def hydra_error(error: Exception) -> ConfigError:
    """Return a ConfigError for any other error of YAML, Hydra or OmegaConf."""
    if isinstance(error, yaml.MarkedYAMLError) and (mark := error.problem_mark) is not None:
        twice = str(error.problem).startswith("found duplicate key")
        where = str(Origin(Path(mark.name.removeprefix("file://")), mark.line + 1))
        expected = "each key once" if twice else "`key: value` lines, indented with spaces"
        known = "mapping values|[%@`]' that cannot start any|could not find expected|found unexpected"
        is_text = re.search(known, str(error.problem)) is not None
        advice = "a text with `: ` or ` #` in it, or that begins with one of %@`{[*&!|>, is written in quotes"
        what, in_quotes = "a configuration file is not valid YAML", advice if is_text else None
        return ConfigError(what, where=where, got=error.problem, expected=expected, advice=in_quotes)
    raise_any(_bad_files(), because=error)
    if isinstance(error, RecursionError | AssertionError):
        return _without_end()
    # Hydra's message without its search path and without references to Python calls
    lines = str(error).split("Config search path:")[0].splitlines()
    kept = [line.rstrip() for line in lines if line.strip() and not re.match(r"\s*(full_key|object_type)", line)]
    message = "\n".join(kept) or type(error).__name__
    match = re.match(r"^In '?([\w/.-]+)'?: ", message)
    file = find(match[1]) if match is not None else None
    place = str(Origin(file)) if file is not None else None
    for broken, line, text in _broken_references(message):
        expected = "the name of an option in `defaults`; elsewhere ${KEY} or ${oc.env:NAME}, closed by }"
        return ConfigError(_NOT_COMPOSED, where=str(Origin(broken, line)), got=text, expected=expected)
    appended = re.search(r"default list use (\+\S+)$", message)  # a group of the user's
    return ConfigError(_NOT_COMPOSED, where=place, got=message, hint=appended[1] if appended else "rlhf list")


def _broken_references(message: str) -> Iterator[tuple[Path, int, str]]:
    """Yield the file, number and text of each line with the reference of a message, or with one that is not closed."""
    named = re.match(r"Error resolving interpolation '(.+?)', possible", message)
    is_open = re.search(r"at input '|input '.*' expecting|token recognition", message) is not None
    for file in _user_files() if named or is_open else ():
        for number, line in enumerate(read_regular(file, _LARGEST).splitlines(), 1):
            text = line.partition(" #")[0].strip()
            if named[1] in text if named else "${" in text and text.count("{") > text.count("}"):
                yield file, number, text


def _user_files() -> Iterator[Path]:
    return (file for folder in search_dirs()[:-1] for file in sorted(folder.rglob("*.yaml")))


def oversized_files() -> Iterator[ConfigError]:
    """Yield an error for each user file that is too deep, or that its aliases expand to a huge one."""
    for file in _user_files():
        try:
            yaml.compose(read_regular(file, _LARGEST), Loader=SAFE_LOADER)
        except OversizedYaml as error:
            line = error.problem_mark.line + 1 if error.problem_mark is not None else None
            expected = "few aliases, no alias inside its own node, and at most 100 levels"
            yield ConfigError(_NOT_READ, where=str(Origin(file, line)), got=error.problem, expected=expected)
        except (yaml.YAMLError, OSError, UnicodeDecodeError):
            continue  # composing reports it, if the file is used


def _bad_files() -> Iterator[ConfigError]:
    """Yield an error for each user file that is not UTF-8 text or has too many references in one value."""
    for file in _user_files():
        line = None
        try:
            lines = enumerate(read_regular(file, _LARGEST).split("\n"), 1)
            line = next(at for at, text in lines if "\0" in text or text.count("${") > _MOST_REFERENCES)
            got = "a NUL byte (UTF-16, or damaged), or too many references in one value"
        except StopIteration:
            continue
        except UnicodeDecodeError as error:
            line = error.object.count(b"\n", 0, error.start) + 1
            got = f"byte {error.object[error.start]:#04x}, which is not UTF-8"
        except OSError as error:
            got = str(error.strerror)
        expected = "a file in UTF-8 (iconv -f latin1 -t utf-8 OLD > NEW)"
        yield ConfigError(_NOT_READ, where=str(Origin(file, line)), got=got, expected=expected)


def _without_end() -> ConfigError:
    """Return the error for defaults that include each other, or a choice that is no name, with possible lines."""
    names = "|".join(re.escape(file.stem) for file in _user_files())
    places = [
        str(Origin(file, number))
        for file in _user_files()
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1)
        if re.match(rf"\s*-.*(\$\{{|\b({names})\b)", line)
    ]
    expected = "defaults that do not include each other, choices that are names, few references in one value"
    got = "defaults or references without an end, or a choice that is no name"
    return ConfigError(_NOT_COMPOSED, where=", ".join(places) or None, got=got, expected=expected)


def file_problems(overrides: list[str]) -> list[ConfigError]:
    """Return the errors in the headers and defaults lists of the chosen files, and of the files that they build on."""
    problems = [error for file in _chosen_files(overrides) if (error := _missing_header(file)) is not None]
    chosen = [text.lstrip("+").partition("=") for text in overrides]
    waiting, seen = [(group.partition("@")[0], name) for group, _, name in chosen], set[Path]()
    for group, name in waiting:  # which grows
        if (file := find(f"{group}/{name}")) is not None and file not in seen:
            seen.add(file)
            for entry in _entries(file, group):
                waiting.append(entry) if isinstance(entry, tuple) else problems.append(entry)
    return problems


def _chosen_files(overrides: list[str]) -> list[Path]:
    chosen = [text.lstrip("+").partition("=") for text in overrides]
    files = [find(f"{group}/{option}") for group, _, option in chosen if group in _GLOBAL_GROUPS]
    return [file for file in files if file is not None]


def _missing_header(file: Path) -> ConfigError | None:
    lines = file.read_text(encoding="utf-8").splitlines()
    first = next((line for line in lines if line.strip()), "")
    if re.match(r"\s*#\s*@package\s+_global_\s*$", first):
        return None
    place = str(Origin(file, 1))
    if first.startswith("\ufeff"):
        what = "the file begins with a byte order mark, which hides its first line"
        hint = f"sed -i '1s/^\\xEF\\xBB\\xBF//' {place.rpartition(':')[0]}"
        return ConfigError(what, where=place, got=repr(first[:30]), expected="UTF-8 without the mark", hint=hint)
    wrong = (f"line {at}: {line.strip()}" for at, line in enumerate(lines, 1) if re.match(r"#.*(@|_global_)", line))
    what = f"a file in {file.parent.name} must set keys of the whole configuration"
    got = next(wrong, f"no `{_HEADER}`: its keys would go below a key {file.parent.name!r}")
    expected = "the comment below as the first line of the file, before every other comment"
    return ConfigError(what, where=place, got=got, expected=expected, hint=_HEADER)


def not_an_override(text: str, known: Groups) -> ConfigError:
    """Return an error for a word that is no override, with what it may stand for."""
    path, close = Path(text), nearest(text, known.get("exp", {}))
    if (path / "config.yaml").is_file():
        hint = f"rlhf resume {shlex.quote(text)}, or rlhf show {shlex.quote(text)}"
    elif path.suffix in (".yaml", ".yml"):
        hint = _moved(text, "exp") or shlex.quote(f"+exp={path.stem}")
    elif of_groups := [group for group, options in known.items() if text in options]:
        hint = {"reward": f"+reward@rewards.{text}", "exp": "+exp"}.get(of_groups[0], of_groups[0]) + f"={text}"
    elif text in valid_keys([]) or re.fullmatch(r"[A-Za-z_]\w*(\.\w+)+", text):
        hint = f"{text}=VALUE"
    else:
        hint = f"+exp={close}" if close is not None else "rlhf list exp"
    expected = "key=value without blanks, or in quotes; or a group choice, such as +exp=NAME of conf/exp/NAME.yaml"
    return ConfigError(f"{text!r} is not an override", where=COMMAND_LINE, expected=expected, hint=hint)


def no_such_option(key: str, value: str, options: Mapping[str, Path]) -> ConfigError:
    """Return an error for an option that its group does not have, or for a ready-made reward without a name."""
    (group, at, _), got = key.partition("@"), f"{key}={value}"
    option = next((option for option in value.split(",") if option not in options), None)
    if option is None:
        what, hint = "a ready-made reward needs a name of your own", f"reward@rewards.NAME={value}"
        return ConfigError(what, where=COMMAND_LINE, got=got, hint=hint)
    stem, trainer = re.sub(r"^.*/|\.ya?ml$", "", option), f"{re.sub('_|trainer', '', option.lower())}trainer"
    meant = (VALUE_SYNONYMS.get(group, {}).get(option.lower()), stem, trainer.removesuffix("trainer"))
    close = next((name for name in meant if name in options), None) or nearest(option, options)
    named = {name.lower(): row for name, row in UNSUPPORTED.items()} if group == "trainer" else {}
    advice, is_path = None, group == "model" or re.search(r"[/:.]", option) or Path(option).exists()
    if refused := named.get(trainer):
        advice, close = f"rlhf does not run TRL's: {refused.why}; {refused.instead}", None
    if stem not in options and (moved := _moved(option, group)) is not None:
        hint = moved
    elif (above := _above(option, group)) is not None:
        hint = above
    elif close is not None:
        hint = f"{key if at or group != 'reward' else f'reward@rewards.{close}'}={close}"
    elif option and group in _BY_PATH and is_path:
        hint = f"{group}={_BY_PATH[group]} {shlex.quote(f'{group}.path={option}')}"
    else:
        hint = f"rlhf list {group}"
    what, expected = f"there is no {group} named {option!r}", f"conf/{group}/NAME.yaml, or one of {', '.join(options)}"
    return ConfigError(what, where=COMMAND_LINE, got=got, expected=expected, hint=hint, advice=advice)


def _above(option: str, group: str) -> str | None:
    """Return how to go to the project's folder from one of its subfolders, None if none above has this option."""
    has_it = (Path(folder, "conf", group, f"{option}.yaml").is_file() for folder in Path.cwd().parents)
    up = next((up for up, found in enumerate(has_it, 1) if found), None)
    return None if up is None else f"cd {'/'.join(['..'] * up)}"


def _moved(text: str, group: str) -> str | None:
    """Return the command that brings the file `text` to where the options of `group` are, None if there is no file."""
    name = Path(re.sub(r"\.ya?ml$", "", text)).name
    place = Path("conf", group, f"{name}.yaml")
    files = [Path(re.sub(r"\.ya?ml$", "", text) + end) for end in (".yaml", ".yml")] + [place.with_suffix(".yml")]
    file = next((file for file in files if name and file.is_file()), place)
    if file.resolve() == place.resolve():
        return None
    make = "" if place.parent.is_dir() else f"mkdir -p {place.parent} && "
    return f"{make}mv {shlex.quote(str(file))} {shlex.quote(str(place))}"


def no_such_group(key: str, text: str) -> ConfigError:
    """Return an error for a choice of a group that does not exist, or for one of Hydra's own settings."""
    group, known = key.partition("@")[0], groups()
    if re.match(r"hydra\b", group) is None:
        what, expected, close = f"unknown group {group!r}", "one of " + ", ".join(known), nearest(group, known)
        hint = close and text.replace(group, close, 1)
        return ConfigError(what, where=COMMAND_LINE, got=text, expected=expected, hint=hint)
    what = "Hydra only composes the configuration; it runs nothing here"
    expected = "run.root and run.name for the run folder, -m for a sweep, -j N for runs at a time"
    return ConfigError(what, where=COMMAND_LINE, got=text, expected=expected, advice="leave it out")


def reason_of(error: HydraException) -> str:
    """Return what Hydra could not read, without the names of its grammar's tokens and of its classes."""
    said = re.split(r": \+\+| expecting ", str(error).splitlines()[0])[0]
    return re.sub(r"^LexerNoViableAltException|^HydraException while evaluating '.*': ", "", said)


def _word_problems(overrides: list[str]) -> Iterator[ConfigError]:
    """Yield an error for every word that Hydra's grammar does not know, or that has values for several runs."""
    for text in overrides:
        typed = text.removeprefix("++")
        key, _, value = typed.partition("=")
        try:
            is_sweep = OverridesParser.create().parse_override(text).is_sweep_override()
        except HydraException as error:
            quoted, meant = f"\"{key}='{{}}'\"", value.translate(_TYPOGRAPHIC).rstrip(",")
            hint = quoted.format(value) if value and set(value).isdisjoint("'\"[{$`\\!") else None
            hint = f"{key}={meant}" if meant not in ("", value) else hint
            if drawn := re.fullmatch(r"(?:log(?:_?uniform|space)?|(uniform))(\(.+,.+\))", value):  # of other tools
                hint = f"'{key}=interval{drawn[2]}'" if drawn[1] else f"'{key}=tag(log,interval{drawn[2]})'"
            hint = hint if hint is not None and hint.isprintable() and key.isascii() else None
            what, got = "a value cannot be read", f"{typed}\n{reason_of(error)}"
            expected = f"[a,b] for a list, {{a: 1}} for a mapping, quotes within quotes: {quoted.format('TEXT')}"
            expected = expected if key.isascii() else LETTERS_OF_A_KEY
            yield ConfigError(what, where=COMMAND_LINE, got=got, expected=expected, hint=hint)
            continue
        if is_sweep:
            what = "several values for one key make a sweep, with one run per value"
            expected = f"one value here; a list is '{key}=[{value}]', a text with a comma \"{key}='{value}'\""
            hint = f"rlhf train -m ... '{key}={value}'"
            yield ConfigError(what, where=COMMAND_LINE, got=typed, expected=expected, hint=hint)
    for group in APPENDED_GROUPS:
        chosen = [text for text in overrides if text.startswith(f"+{group}=")]
        if len(chosen) > 1:
            expected = f"one of them; a file of conf/{group} can name others in its `defaults`"
            what, hint = f"several options of {group} at once", chosen[-1]
            yield ConfigError(what, where=COMMAND_LINE, got=" ".join(chosen), expected=expected, hint=hint)


def _unlike_shapes(overrides: list[str], of_files: Origins) -> Iterator[ConfigError]:
    """Yield an error for every key that is a list in one place and a mapping in an earlier one, or the reverse."""
    typed = dict[str, Any]()
    for override in OverridesParser.create().parse_overrides([text for text in overrides if text.startswith("++")]):
        typed[override.key_or_group] = value = override.value()
        shape = yaml.SequenceNode if isinstance(value, list) else yaml.MappingNode if isinstance(value, dict) else None
        of_files.note_shape(override.key_or_group, shape or yaml.ScalarNode, Origin(None))
    for key, before, now in of_files.unlike:
        has, had = ("a list", "a mapping")[:: 1 if of_files.shapes[key] is yaml.SequenceNode else -1]
        is_unnamed = key == "rewards" and has == "a list"
        given = yaml.load(read_regular(now.file, _LARGEST), Loader=SAFE_LOADER) if is_unnamed and now.file else typed
        hint = named_rewards(given.get(key), now) if is_unnamed else None
        expected = NAMED_REWARDS if is_unnamed else f"{had}, as in {before}"
        yield ConfigError(f"{key} is {has}, not {had}", where=f"{key} ({now})", expected=expected, hint=hint)


def _absent_deletions(overrides: list[str], composed: Callable[[list[str]], DictConfig]) -> Iterator[ConfigError]:
    """Yield an error for every `~key` whose key does not exist in the configuration composed without deletions."""
    deletions = [text for text in overrides if text.startswith("~")]
    if not deletions:
        return
    config = composed([text for text in overrides if text not in deletions])
    keys = [key for key, _ in leaves(OmegaConf.to_container(config, resolve=False))]
    for text in deletions:
        key, _, value = text[1:].partition("=")
        if key not in keys or value:
            close = nearest_path(key, keys)
            is_there = f"does not have the value {value}" if key in keys else "does not exist, so ~ cannot delete it"
            expected, hint = "~KEY of an existing key; `rlhf show` lists them", f"'~{close}'" if close else None
            yield ConfigError(f"{key} {is_there}", where=COMMAND_LINE, got=text, expected=expected, hint=hint)


_REFERENCE = re.compile(r"\$\{\s*(?P<dots>\.*)(?P<key>[^{}:]+?)\s*\}")
_ENVIRONMENT = re.compile(r"\$\{oc\.env:\s*(?P<name>[^{}:,\s]+)")


def reference_problems(config: DictConfig, origins: Origins) -> Iterator[ConfigError]:
    """Yield an error for every value of a composed configuration that refers to a missing key or variable."""
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
        name = variable["name"]
        what, expected = f"the environment variable {name} is not set", f"it, or a default: ${{oc.env:{name},VALUE}}"
        return ConfigError(what, where=where, got=text, expected=expected, hint=f"export {name}=...")
    if not isinstance(error, InterpolationKeyError):
        got = f"{text}\n{str(error).splitlines()[0]}"
        expected = "${KEY} for the value of another key, ${oc.env:NAME} for a variable; \\${ for a literal ${"
        return ConfigError(f"{key} cannot be resolved", where=where, got=got, expected=expected)
    hint = "rlhf list keys"
    for match in _REFERENCE.finditer(text):
        depth = len(match["dots"])
        meant = ".".join([*(key.split(".")[:-depth] if depth else []), match["key"]])
        if re.fullmatch(r"[A-Z_][A-Z0-9_]*", match["key"]):  # the form of shells
            hint = text.replace(match[0], f"${{oc.env:{match['key']}}}")
        elif re.sub(r"\[(\w+)\]", r".\1", meant) not in keys and (close := nearest_path(meant, keys)):
            hint = text.replace(match[0], f"${{{close}}}")
    expected, what = "${KEY} with the full name of another key", f"{key} refers to a key that does not exist"
    return ConfigError(what, where=where, got=text, expected=expected, hint=hint)


_SELF, _OVERRIDE, _DEFAULTS = "_self_", "override", "defaults"
_ENTRY = re.compile(r"(\w+ +)?(?P<path>[\w./-]+)(?P<at>@[\w.]*)?(\s*[:=]\s*(?P<option>[\w.-]+))?")
_FORM = "an entry of `defaults` is a NAME of the same group, `/GROUP: OPTION`, or `override /GROUP: OPTION`"
_NOT_THE_FORM = "the entry is not in the form that Hydra reads"


def _entries(file: Path, group: str) -> Iterator[ConfigError | tuple[str, str]]:
    """Yield an error, or the group and the name of the file that it builds on, for each entry of a defaults list."""
    root = yaml.compose(file.read_text(encoding="utf-8"), Loader=SAFE_LOADER)
    pairs = root.value if isinstance(root, yaml.MappingNode) else []
    key, value = next((pair for pair in pairs if nearest(str(pair[0].value), [_DEFAULTS])), (None, None))
    if key is None:
        return
    if key.value != _DEFAULTS or not isinstance(value, yaml.SequenceNode):
        what, where = "an experiment builds on a list called `defaults`", str(Origin(file, key.start_mark.line + 1))
        yield ConfigError(what, where=where, got=str(key.value), expected=_FORM, hint=f"defaults: [NAME, {_SELF}]")
        return
    first = 0
    for node in value.value:
        pair = node.value[0] if isinstance(node, yaml.MappingNode) else (node,)
        line = node.start_mark.line + 1
        where = str(Origin(file, line))
        if isinstance(pair[-1], yaml.MappingNode):
            what = "an entry of `defaults` names one option"
            yield ConfigError(what, where=where, got="a mapping", hint=f"- {pair[0].value}: NAME")
        if not all(isinstance(part, yaml.ScalarNode) and part.value and not part.tag.endswith("null") for part in pair):
            continue  # no option, or several
        text = ": ".join(str(part.value) for part in pair)
        what, meant, names = _corrected(text, group)
        if what:
            expected = "one of " + ", ".join(names) if names else _FORM
            yield ConfigError(what, where=where, got=f"- {text}", expected=expected, hint=f"- {meant}")
        elif first and not text.startswith(_OVERRIDE) and text != _SELF:
            what, advice = "entries with `override` come last in `defaults`", f"move line {line} above line {first}"
            yield ConfigError(what, where=where, got=f"- {text}", advice=advice)
        else:
            words = [str(part.value).partition("@")[0] for part in pair]
            above, _, name = "/".join(words).rpartition(" ")[2].strip("/").rpartition("/")
            yield above or group, name
            first = first or line * text.startswith(_OVERRIDE)


def _corrected(text: str, own: str) -> tuple[str, str, Sequence[str]]:
    """Return what is wrong with an entry ('': nothing) of a file in the group `own`, the right entry, and its names."""
    known, match = groups(), _ENTRY.fullmatch(text)
    if match is None or text == _SELF:
        return "", text, ()
    group, at, option = match["path"].strip("/"), match["at"] or "", match["option"]
    is_name, above, what, names = option is None and (group not in known or group in known[own]), "", "", [*known]
    if is_name:
        above, _, option = group.removesuffix(".yaml").rpartition("/")
        group = above or own
    elif option is None:
        what, option, names = _NOT_THE_FORM, "NAME", []
    if (is_name and " " in text) or (text[0] != "/" and f"{own}/{group}" in known):
        return "", text, ()
    if group not in known:
        what, group = f"there is no group {group!r}", nearest(group, known) or "GROUP"
    elif not what and option not in known[group]:
        what, names = f"there is no {group} named {option!r}", [*known[group]]
        holder = next((other for other in known if option in known[other]), None) if is_name else None
        if is_name and nearest(text.strip("_"), ["self"]):
            return _NOT_THE_FORM, _SELF, ()
        group, is_name = holder or group, is_name and holder is None
        meant = option if holder else VALUE_SYNONYMS.get(group, {}).get(option.lower()) or nearest(option, names)
        option = meant or "NAME"
    if is_name or group == own:
        meant = f"/{above}/{option}{at}" if above else f"{option}{at}" if is_name else option
    else:
        if group == "reward" and not at.startswith("@rewards."):
            at = f"@rewards.{re.sub(r'^@?(rewards?([.]|$))?', '', at) or option}"
        has_default = f"\n  - {group}:" in (shipped_dir() / "train.yaml").read_text(encoding="utf-8")
        meant = f"{f'{_OVERRIDE} ' * (has_default and not at)}/{group}{at}: {option}"
    is_right = " ".join(text.removeprefix("optional").removesuffix(".yaml").split()) == meant
    return what or ("" if is_right else _NOT_THE_FORM), meant, names if what else ()
