"""Reports all unresolvable references of a configuration, with file, line and the key or variable that was meant."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import (
    GrammarParseError,
    InterpolationKeyError,
    InterpolationToMissingValueError,
    OmegaConfBaseException,
    UnsupportedInterpolationType,
)

from rlhf_cli.config.nearest_keys import nearest_path
from rlhf_cli.config.origins import Origins
from rlhf_cli.config.schema.keys import leaves
from rlhf_cli.errors import ConfigError
from rlhf_cli.suggest import nearest

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
