"""Compose what a user typed with Hydra into a plain dict, and note where each value came from.

Hydra itself needs `+` for new keys and no sign for existing ones, so users would have to know the tree. Here every
value override becomes `++key=value` (set it, whether or not it exists), and pydantic validates the key afterwards.
Group choices and deletions (`~key`) keep Hydra's meaning; overrides of Hydra itself (`hydra.*`) are refused.
"""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from hydra import initialize_config_dir
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.defaults_list import create_defaults_list
from hydra.core.config_store import ConfigStore
from hydra.core.default_element import ResultDefault
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import InterpolationToMissingValueError, OmegaConfBaseException

from rlhf_cli.config import conf_folders
from rlhf_cli.config.environment_references import References, for_composing, references_of
from rlhf_cli.config.origins import Origins
from rlhf_cli.config.schema.experiment import valid_keys
from rlhf_cli.config.schema.model_and_data import Eval
from rlhf_cli.errors import ConfigError, raise_any
from rlhf_cli.text.json_values import JsonTree, leaves, section
from rlhf_cli.text.regular_files import SAFE_LOADER

CONFIG_NAME = "train"
_FROZEN = "frozen"
_OVERRIDE = re.compile(r"^(?P<sign>\+{0,2})(?P<key>[^=+~][^=]*)=(?P<value>.*)$", re.DOTALL)
_OPTIONS = re.compile(r"^[\w./,: -]*$")
"""Options of a group; anything else is an expression of Hydra's grammar, such as `glob(...)`."""
_OF_BAD_FILES = (UnicodeDecodeError, RecursionError, AssertionError)
"""What Hydra and OmegaConf raise for text in another encoding, circles, and a choice that is no text."""
AFRESH = {key: f"++{key}=null" for key in ("expect", "stop")}
"""The override before a typed section that replaces all of it: Hydra cannot merge a list with a mapping."""


@dataclass(frozen=True)
class Composed:
    """A composed experiment. Its `tree` is plain and resolved, but not validated yet."""

    tree: JsonTree
    choices: dict[str, str | None]
    """Maps each group to the option that was chosen, e.g. {"trainer": "grpo", "exp": "quickstart"}."""
    origins: Origins
    overrides: tuple[str, ...]
    frozen: Path | None = None
    """The configuration file of the run that this is based on; None for a new experiment."""
    references: References = field(default_factory=dict)
    """The texts that came from the environment; files of a run must not contain their values."""
    typed: tuple[str, ...] = ()
    """The words of the command line, as they were typed."""


def compose(typed: list[str], frozen: tuple[JsonTree, Path | None] | None = None) -> Composed:
    """Compose what the user typed, for a new experiment or on top of a run's `frozen` configuration and its file.

    In a frozen configuration a group choice (`truncation=none`) replaces its whole section. Raise ConfigError if a file
    is not YAML, a group option does not exist, an interpolation does not resolve, or a run is given another experiment.
    """
    overrides, name, file = rewrite(typed), CONFIG_NAME, None
    chosen: dict[str, str | None] | None = None
    if frozen is not None:
        (config_of_run, file), chosen, name = frozen, {}, _FROZEN
        overrides = [_on_frozen(text, chosen) for text in overrides]
        kept = for_composing({key: value for key, value in config_of_run.items() if key not in chosen})
        ConfigStore.instance().store(name=_FROZEN, node=kept)
    with composing() as loader:
        try:
            if conf_folders.search_dirs()[1:]:
                from rlhf_cli.config.composing_errors import oversized_files  # Hydra would read such a file for hours

                raise_any(oversized_files())
            config, choices = loader.compose(name, overrides)
        except (HydraException, OmegaConfBaseException, ValueError, TypeError, *_OF_BAD_FILES) as error:
            from rlhf_cli.config.composing_errors import explain  # needed only for a mistake

            explain(error, overrides, _of_files(loader, file), lambda words: loader.compose(name, words)[0])
        origins = _of_files(loader, file)
        raise_any(origins.chosen_twice)
        for override in OverridesParser.create().parse_overrides([text for text in overrides if text.startswith("++")]):
            key, value = override.key_or_group, override.value()  # Hydra merges a dict into what is there
            below = [f"{key}.{name}" for name, inner in leaves(value) if not isinstance(inner, dict)]
            is_new = value == {} and key not in origins.by_key
            origins.add_command_line(below if isinstance(value, dict) and not is_new else [key])
        tree = _resolved(config, origins)
        if file is None and not tree.keys() <= set(valid_keys([])):  # a header or a package may be missing
            from rlhf_cli.config.composing_errors import file_problems

            raise_any(file_problems(overrides))
        references = references_of(config)
    _keep_one_kind_of_eval(tree, origins)
    if any(text.startswith("++data") for text in overrides):
        _let_typed_sources_win(tree, origins)
    if frozen is None:
        _refuse_unread_group(tree, origins, overrides)
        _refuse_replaced_values(origins, conf_folders.find(f"exp/{choices.get('exp')}"))
    choices = choices if chosen is None else chosen
    return Composed(tree, choices, origins, tuple(overrides), file, references, tuple(typed))


def rewrite(typed: list[str]) -> list[str]:
    """Return the words as overrides in Hydra's order. Raise ConfigError for an invalid word, group or option."""
    known = conf_folders.groups()
    rewritten: list[str] = []
    appended: dict[str, list[str]] = {group: [] for group in conf_folders.APPENDED_GROUPS}
    for text in map(quote_paths, typed):
        match = _OVERRIDE.match(text)
        if match is None:
            if not text.startswith("~"):
                from rlhf_cli.config.composing_errors import not_an_override  # needed only for a mistake

                raise not_an_override(text, known)
            rewritten.append(text)
            continue
        key, value = match["key"].strip(), match["value"]
        group, at, _ = key.partition("@")
        if group in known and (at or not value.startswith("{")):  # model={path: x} sets values; it chooses no option
            value = value.strip("[]")
            options = value.split(",") if _OPTIONS.match(value) else []
            if key == "reward" or any(option not in known[group] for option in options):
                from rlhf_cli.config.composing_errors import no_such_option

                raise no_such_option(key, value, known[group])
            is_theirs = not (conf_folders.shipped_dir() / group).is_dir()  # which defaults have it, they know
            is_new = bool(at) or group in conf_folders.APPENDED_GROUPS or (match["sign"] and is_theirs)
            appended.get(key, rewritten).append(f"{'+' if is_new else ''}{key}={value}")
        elif at or "/" in group or group.partition(".")[0] == "hydra":
            from rlhf_cli.config.composing_errors import no_such_group

            raise no_such_group(key, text)
        else:
            rewritten += [AFRESH[key]] if key in AFRESH else []
            rewritten.append(f"++{key}={value}")
    # `exp` before `debug`: the last one composed wins.
    return [*rewritten, *(override for overrides in appended.values() for override in overrides)]


def quote_paths(text: str) -> str:
    """Return the word; put its value in quotes if it is a path, stop rule or template that Hydra would parse."""
    key, equals, value = text.partition("=")
    if not equals or "'" in value or '"' in value:
        return text
    name = key.lstrip("+")
    if name.startswith("stop.") and any(sign in value for sign in "<>="):
        return f'{key}="{value}"'
    is_template = name == "data.prompt" and "{" in value and "${" not in value and value[0] != "["
    # The folder of a sweep's run is `weight=0.5,seed=2`. Path.exists would raise for a text longer than a name.
    is_path = any(sign in value for sign in "=,") and os.path.exists(os.path.expanduser(value))
    return f"{key}='{value}'" if is_template or is_path or value.startswith("~/") else text


class NotingLoader(ConfigLoaderImpl):
    """A loader that leaves out Hydra's own settings, half of its time; `merged` are the files that it composed last."""

    merged: Sequence[ResultDefault] = ()

    def compose(self, config_name: str, overrides: list[str]) -> tuple[DictConfig, dict[str, str | None]]:
        """Return the configuration and the option chosen for each group. Raise the errors of Hydra and OmegaConf."""
        parsed, repo = self._parse_overrides_and_create_caching_repo(config_name, overrides)
        self.validate_sweep_overrides_legal(overrides=parsed, run_mode=RunMode.RUN, from_shell=False)
        listed = create_defaults_list(
            repo=repo, config_name=config_name, overrides_list=parsed, prepend_hydra=False, skip_missing=False
        )
        self.merged = listed.defaults
        config = self._compose_config_from_defaults_list(listed.defaults, repo)
        OmegaConf.set_struct(config, True)
        self._apply_overrides_to_config(listed.config_overrides, config)
        choices = OmegaConf.to_container(OmegaConf.create(listed.overrides.known_choices))
        assert isinstance(choices, dict)
        return config, {str(key): value for key, value in choices.items()}


@contextmanager
def composing() -> Iterator[NotingLoader]:
    """Yield a loader; jobs of a sweep share its Hydra. Raise ConfigError for errors of Hydra, OmegaConf and YAML."""
    try:
        with ExitStack() as stack:
            if not GlobalHydra.instance().is_initialized():
                stack.enter_context(initialize_config_dir(str(conf_folders.shipped_dir()), version_base="1.3"))
            search_path = copy.deepcopy(GlobalHydra.instance().config_loader().get_search_path())
            for folder in conf_folders.search_dirs()[:-1]:  # Hydra's --config-dir would rank below the shipped files
                search_path.prepend(provider="user", path=f"file://{folder}", anchor="main")
            yield NotingLoader(search_path)
    except (yaml.YAMLError, HydraException, OmegaConfBaseException, *_OF_BAD_FILES) as error:
        from rlhf_cli.config.composing_errors import hydra_error  # needed only for a mistake

        raise hydra_error(error) from error


def _of_files(loader: NotingLoader, frozen: Path | None) -> Origins:
    """Return the origins of what the files set that were merged last."""
    origins = Origins()
    if frozen is not None:
        origins.add_file(frozen, "")
    for default in loader.merged:
        if default.config_path and (merged := conf_folders.find(default.config_path)) is not None:
            origins.add_file(merged, default.package or "")
    return origins


def _resolved(config: DictConfig, origins: Origins) -> JsonTree:
    """Return the plain tree. Raise ConfigError, or Problems, for references to keys or variables that do not exist."""
    while True:
        try:
            tree: Any = OmegaConf.to_container(config, resolve=True)
            return {str(key): value for key, value in tree.items()}
        except InterpolationToMissingValueError as error:  # stays text, so that all missing values are reported
            key = str(error.full_key)
            unresolved = dict(leaves(OmegaConf.to_container(config, resolve=False)))
            text = unresolved[re.sub(r"\[(\d+)\]", r".\1", key)]
            OmegaConf.update(config, key, str(text).replace("${", r"\${"))
        except OmegaConfBaseException as error:
            from rlhf_cli.config.composing_errors import reference_problems  # needed only for a mistake

            raise_any(reference_problems(config, origins), because=error)
            raise


_OF_A_PATH = ("subset", "revision", "split")
_REPLACES = {
    "data.path": _OF_A_PATH,
    "data.eval.path": (*_OF_A_PATH, "world", "args", "fraction"),
    "data.eval.world": (*_OF_A_PATH, "path", "fraction"),
    "data.eval.fraction": (*_OF_A_PATH, "path", "world", "args"),
}
"""A typed source of rows -> the settings of the source in the files that it replaces."""


def _let_typed_sources_win(tree: JsonTree, origins: Origins) -> None:
    """When a source of rows was typed, clear in place the settings that files give for the source that it replaces."""
    typed = {key for key, origin in origins.by_key.items() if key.startswith("data.") and origin.file is None}
    sections = {key: value for key, value in leaves(tree) if isinstance(value, dict)}
    for key in typed:
        prefix, _, source = key.rpartition(".")
        rule = re.sub(r"^data(?:(\.eval)|\.mix)\.[^.]+\.", r"data\1.", key)  # of a named set, or a source of a mix
        section = sections.get(prefix, {})
        for name in _REPLACES.get(rule, ()) if section.get(source) is not None else ():
            if section.get(name) and f"{prefix}.{name}" not in typed:
                section[name] = {} if isinstance(section[name], dict) else None
                origins.by_key[f"{prefix}.{name}"] = origins.by_key[key]


def _keep_one_kind_of_eval(tree: JsonTree, origins: Origins) -> None:
    """Clear in place the kind of `data.eval`, one set or named ones, that was not given last; keep both of one file."""
    rows = section(section(tree, "data"), "eval")
    is_set = {name: name not in Eval.model_fields and isinstance(rows[name], dict) for name in rows}
    keys = (key.split(".") for key in origins.by_key if key.startswith("data.eval."))
    given = {key[2]: origins.by_key[".".join(key)] for key in keys if key[2] in is_set}
    if len({*is_set.values()}) < 2 or not given:
        return
    last = max(given, key=lambda name: (given[name].file is None, [*given].index(name)))
    others = [name for name in rows if is_set[name] != is_set[last]]
    if all(name not in given or given[name].file != given[last].file for name in others):
        for name in others:
            del rows[name]


_SOURCES = {"data": ("path", "world", "mix"), "model": ("path", "build")}


def _refuse_unread_group(tree: JsonTree, origins: Origins, overrides: Sequence[str]) -> None:
    """Raise ConfigError for a typed `data=` or `model=` whose source another file replaces: it would not be read."""
    for override in overrides:
        group, equals, option = override.partition("=")
        if not equals or group not in _SOURCES or (file := conf_folders.find(f"{group}/{option}")) is None:
            continue
        named = yaml.load(file.read_text(encoding="utf-8"), Loader=SAFE_LOADER)
        has_source = isinstance(named, dict) and any(named.get(key) not in (None, "???") for key in _SOURCES[group])
        for key in _SOURCES[group] if has_source else ():
            origin, value = origins.by_key.get(f"{group}.{key}"), section(tree, group).get(key)
            if value is not None and origin is not None and origin.file not in (None, file):
                what = f"{origin} sets {group}.{key}, so {override} has no effect"
                advice = f"remove {group}.{key} from that file, or {override} from the command line"
                raise ConfigError(what, where="command line", got=override, advice=advice)


def _refuse_replaced_values(origins: Origins, chosen: Path | None) -> None:
    """Raise ConfigError for a value of the chosen experiment that an experiment in its defaults replaces."""
    own = Origins()
    if chosen is not None:
        own.add_file(chosen, "")
    for key, origin in own.by_key.items():
        last = origins.by_key.get(key, origin)
        if last.file not in (None, chosen) and last.file.parent.name == "exp" and key in own.single:
            what, expected = f"{last} replaces the value of {key}", "`_self_` after the experiments that it builds on"
            advice = f"move `- _self_` behind `- {last.file.stem}` in `defaults`"
            raise ConfigError(what, where=f"{key} ({origin})", expected=expected, advice=advice)


def _on_frozen(override: str, chosen: dict[str, str | None]) -> str:
    """Return the override in the form Hydra needs without a defaults list, and note each replaced section."""
    group, equals, option = override.lstrip("+").partition("=")
    if group in conf_folders.APPENDED_GROUPS:
        what, expected = f"a run cannot get another {group}", "key=value, or a group choice such as truncation=none"
        raise ConfigError(what, where="command line", got=override, expected=expected, hint="rlhf train " + override)
    if not equals or override.startswith(("++", "~")) or group not in conf_folders.groups():
        return override
    chosen[group] = option
    return f"+{group}={option}"
