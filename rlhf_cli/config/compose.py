"""Compose an experiment with Hydra into a plain dict and note where each value came from."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from hydra import initialize_config_dir
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import IConfigRepository
from hydra._internal.defaults_list import create_defaults_list
from hydra.core.config_store import ConfigStore
from hydra.core.default_element import ResultDefault
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import ConfigCompositionException, HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import InterpolationToMissingValueError, OmegaConfBaseException

from rlhf_cli.config import conf_folders
from rlhf_cli.config.conf_folders import APPENDED_GROUPS, groups
from rlhf_cli.config.environment_references import References, for_composing, references_of
from rlhf_cli.config.origins import Origins
from rlhf_cli.config.overrides import refuse_several_values, rewrite
from rlhf_cli.errors import ConfigError, raise_any
from rlhf_cli.text.json_values import JsonTree

CONFIG_NAME = "train"
_FROZEN = "frozen"


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


def compose(typed: list[str]) -> Composed:
    """Compose what the user typed.

    Raise ConfigError if a file is not YAML, a group option does not exist or an interpolation does not resolve.
    """
    overrides = rewrite(typed)
    refuse_several_values(typed)
    return _composed(CONFIG_NAME, overrides)


def compose_frozen(config: JsonTree, file: Path | None, typed: list[str]) -> Composed:
    """Compose `config`, which was frozen in `file`, with the user's overrides on top of it.

    A group choice (`truncation=none`) replaces its whole section. Raise ConfigError as `compose` does, and for `exp=`,
    because a run already has its experiment.
    """
    chosen: dict[str, str | None] = {}
    overrides = [_on_frozen(text, chosen) for text in rewrite(typed)]
    kept = for_composing({section: value for section, value in config.items() if section not in chosen})
    ConfigStore.instance().store(name=_FROZEN, node=kept)
    return _composed(_FROZEN, overrides, file=file, chosen=chosen)


def _composed(
    name: str, overrides: list[str], *, file: Path | None = None, chosen: dict[str, str | None] | None = None
) -> Composed:
    """Compose a primary configuration, frozen in `file` or shipped, with Hydra's overrides."""
    with composing() as loader:
        try:
            user = conf_folders.user_dir()
            for of_user in sorted(user.rglob("*.yaml")) if user is not None else ():
                from rlhf_cli.config.composing_errors import refuse_oversized  # Hydra would read such a file for hours

                refuse_oversized(of_user)
            config, choices = loader.compose(name, overrides)
        except (HydraException, OmegaConfBaseException, ValueError) as error:
            from rlhf_cli.config.composing_errors import explain  # needed only for a mistake

            explain(error, overrides, lambda words: loader.compose(name, words)[0])
        origins = _origins_of(loader.merged, overrides, frozen=file)
        tree = _resolved(config, origins)
        if "exp" in tree or "debug" in tree:  # the keys of such a file are those of the whole configuration
            from rlhf_cli.config.composing_errors import refuse_missing_headers

            refuse_missing_headers(overrides)
        references = references_of(config)
    _let_typed_sources_win(tree, origins)
    return Composed(
        tree, choices if chosen is None else chosen, origins, tuple(overrides), frozen=file, references=references
    )


class NotingLoader(ConfigLoaderImpl):
    """A loader that searches the user's `./conf` first; `merged` are the files of its last composition.

    Hydra's own `--config-dir` would rank below the shipped files.
    """

    def __init__(self) -> None:
        search_path = copy.deepcopy(GlobalHydra.instance().config_loader().get_search_path())
        if (user := conf_folders.user_dir()) is not None:
            search_path.prepend(provider="user", path=f"file://{user}", anchor="main")
        super().__init__(search_path)
        self.merged: list[ResultDefault] = []

    def compose(self, config_name: str, overrides: list[str]) -> tuple[DictConfig, dict[str, str | None]]:
        """Return what Hydra composes, without its own settings, and the option chosen for each group.

        Raises the errors of Hydra's `compose`.
        """
        try:
            parsed, repo = self._parse_overrides_and_create_caching_repo(config_name, overrides)
            self.validate_sweep_overrides_legal(overrides=parsed, run_mode=RunMode.RUN, from_shell=False)
            listed = create_defaults_list(
                repo=repo, config_name=config_name, overrides_list=parsed, prepend_hydra=False, skip_missing=False
            )
            config = self._compose_config_from_defaults_list(listed.defaults, repo)
            OmegaConf.set_struct(config, True)
            self._apply_overrides_to_config(listed.config_overrides, config)
        except OmegaConfBaseException as error:
            raise ConfigCompositionException(str(error)) from error
        choices = OmegaConf.to_container(OmegaConf.create(listed.overrides.known_choices))
        assert isinstance(choices, dict)
        return config, {str(key): value for key, value in choices.items()}

    def _compose_config_from_defaults_list(self, defaults: list[ResultDefault], repo: IConfigRepository) -> DictConfig:
        self.merged = defaults
        return super()._compose_config_from_defaults_list(defaults, repo)


@contextmanager
def composing() -> Iterator[NotingLoader]:
    """Yield a loader for use inside the `with` block: it uses the sweep's Hydra during a sweep, else starts its own.

    Raise ConfigError instead of Hydra's, OmegaConf's and YAML's own errors.
    """
    try:
        if GlobalHydra.instance().is_initialized():
            yield NotingLoader()
            return
        with initialize_config_dir(str(conf_folders.shipped_dir()), version_base="1.3"):
            yield NotingLoader()
    except (yaml.MarkedYAMLError, HydraException, OmegaConfBaseException) as error:
        from rlhf_cli.config.composing_errors import in_our_words  # needed only for a mistake

        raise in_our_words(error) from error


def _resolved(config: DictConfig, origins: Origins) -> JsonTree:
    """Return the plain tree. A value that refers to a missing value (`???`) stays unresolved text.

    OmegaConf alone would stop at the first such value, and the user would learn of one missing value instead of all.
    Raise ConfigError, or Problems, for values that refer to keys or variables that do not exist.
    """
    while True:
        try:
            tree: Any = OmegaConf.to_container(config, resolve=True)
            return {str(key): value for key, value in tree.items()}
        except InterpolationToMissingValueError as error:
            key = str(error.full_key)
            node: Any = OmegaConf.to_container(config, resolve=False)
            for part in re.findall(r"[^.\[\]]+", key):
                node = node[int(part)] if isinstance(node, list) else node[part]
            OmegaConf.update(config, key, str(node).replace("${", r"\${"))
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
    """When a data source was typed, clear in place the settings that files give for the source it replaces.

    `data.path=FILE` on the command line selects another dataset, so the old `subset`, `revision` and `split` are
    cleared. Held-out rows have a single source: a typed path, world or fraction replaces the others.
    """
    typed = {key for key, origin in origins.by_key.items() if key.startswith("data.") and origin.file is None}
    for key in typed & _REPLACES.keys():
        prefix, _, source = key.rpartition(".")
        section: Any = tree
        for part in prefix.split("."):
            section = section.get(part) if isinstance(section, dict) else None
        if not isinstance(section, dict) or section.get(source) is None:
            continue
        for name in _REPLACES[key]:
            if section.get(name) and f"{prefix}.{name}" not in typed:
                section[name] = {} if isinstance(section[name], dict) else None
                origins.by_key[f"{prefix}.{name}"] = origins.by_key[key]


def _origins_of(merged: list[ResultDefault], overrides: list[str], *, frozen: Path | None) -> Origins:
    """Return where each value came from: the merged files in order, then the command line.

    `frozen` is the file of a primary configuration outside the conf folders, or None.
    """
    origins = Origins()
    if frozen is not None:
        origins.add_file(frozen, "")
    for default in merged:
        file = conf_folders.find(default.config_path) if default.config_path else None
        if file is not None:
            origins.add_file(file, default.package or "")
    for override in OverridesParser.create().parse_overrides([text for text in overrides if text.startswith("++")]):
        origins.add_command_line(_keys_set(override.key_or_group, override.value()))
    return origins


def _keys_set(key: str, value: object) -> Iterator[str]:
    """Yield the keys an override sets: Hydra merges a dict into an existing one and replaces any other value."""
    if not isinstance(value, dict):
        yield key
    for name, below in value.items() if isinstance(value, dict) else ():
        yield from _keys_set(f"{key}.{name}", below)


def _on_frozen(override: str, chosen: dict[str, str | None]) -> str:
    """Return the override in the form Hydra needs without a defaults list, and note each replaced section."""
    group, equals, option = override.lstrip("+").partition("=")
    if group in APPENDED_GROUPS:
        raise ConfigError(
            f"a run has its {group} already",
            where="command line",
            got=override,
            expected="key=value, or a group choice such as truncation=none",
            hint="rlhf train " + override,
        )
    if not equals or override.startswith(("+", "~")) or group not in groups():
        return override
    chosen[group] = option
    return f"+{override}"
