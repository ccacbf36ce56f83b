"""Composes with Hydra and replaces Hydra's errors by messages that name the wrong word or line and suggest a fix."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rlhf_cli.config.conf_folders import APPENDED_GROUPS, find, user_dir
from rlhf_cli.config.defaults_lists import defaults_problems, missing_header
from rlhf_cli.config.nearest_keys import nearest_path
from rlhf_cli.config.noting_loader import NotingLoader
from rlhf_cli.config.origins import Origin
from rlhf_cli.config.schema.keys import leaves
from rlhf_cli.config.shell_words import in_shell_quotes, readable
from rlhf_cli.config.unlike_shapes import unlike_shapes
from rlhf_cli.errors import ConfigError, Problems, UserError
from rlhf_cli.yaml_loader import SAFE_LOADER, OversizedYaml

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
