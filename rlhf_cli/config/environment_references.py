"""Keep values from the environment as references: a frozen configuration says `${oc.env:NAME}`, not the value.

So the run folder contains no secrets, and the run can still use them: each rank resolves the reference when it reads
the configuration, at every start. Names of things (a path, a model, a function, the run folder) and values that are not
text are frozen as values, unless they look like a secret: a run must not depend on the shell for these.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from omegaconf.resolvers import oc

from rlhf_cli.errors import ConfigError
from rlhf_cli.text.json_values import JsonTree, JsonValue, leaves
from rlhf_cli.text.redaction import remember_variable, secret_in

Path: TypeAlias = tuple[str | int, ...]
References: TypeAlias = dict[Path, tuple[str, str]]
"""Maps the path of a text in a configuration -> (the reference, its current value)."""

_RESOLVER = "oc.env"
_REFERENCE = re.compile(r"(\\)?\$\{oc\.env:([^{}:,\s]+)\}")
_MARK = re.compile("\0([^\1]*)\1")
_NAMES_OF_THINGS = {"path", "fn", "model", "tokenizer", "class", "root", "name", "world", "init", "project", "entity"}


def references_of(config: DictConfig) -> References:
    """Return the texts from the environment, even through other keys; output hides their values from now on."""
    raw = leaves(OmegaConf.to_container(config, resolve=False))
    if not any("oc.env:" in value for _, value in raw if isinstance(value, str)):
        return {}
    values = dict(_texts(config))

    def mark(name: str, *default: object) -> object:
        return f"\0{name}\1" if name in os.environ or not default else oc.env(name, *map(str, default))

    OmegaConf.register_new_resolver(_RESOLVER, mark, replace=True)  # inserts the name between marks, not the value
    try:
        marked = list(_texts(config))
    finally:
        OmegaConf.register_new_resolver(_RESOLVER, oc.env, replace=True)
    references: References = {}
    for path, text in marked:
        value = values.get(path)
        if _MARK.search(text) is None or value is None:
            continue
        if path[-1] in _NAMES_OF_THINGS and secret_in(value) is None:
            continue
        for name in _MARK.findall(text):
            remember_variable(name, os.environ[name], key=str(path[-1]))
        references[path] = (_MARK.sub(r"${oc.env:\1}", text), value)
    return references


def with_references(tree: JsonTree, references: References) -> JsonTree:
    """Return the tree with each text from the environment as a reference; escape a text that only looks like one."""
    by_text = {(path, value): reference for path, (reference, value) in references.items()}
    return _changed(tree, lambda text, path: by_text.get((path, text)) or text.replace("${oc.env:", r"\${oc.env:"))


def resolved_references(tree: JsonTree) -> JsonTree:
    """Resolve a frozen configuration's references; output hides the values. Raise ConfigError for an unset variable."""
    return _changed(
        tree,
        lambda text, path: _REFERENCE.sub(lambda match: match[0][1:] if match[1] else _value_of(match[2], path), text),
    )


def for_composing(tree: JsonTree) -> JsonTree:
    """Return a frozen configuration for OmegaConf: references stay, every other `${` is escaped."""

    def escaped(text: str, path: Path) -> str:
        for escape, name in _REFERENCE.findall(text):
            if not escape:
                _value_of(name, path)
        return re.sub(rf"({_REFERENCE.pattern})|\$\{{", lambda match: match[1] or r"\${", text)

    return _changed(tree, escaped)


def _changed(tree: JsonTree, change: Callable[[str, Path], str]) -> JsonTree:
    def changed(node: JsonValue, path: Path) -> JsonValue:
        if isinstance(node, dict):
            return {key: changed(value, (*path, key)) for key, value in node.items()}
        if isinstance(node, list):
            return [changed(value, (*path, place)) for place, value in enumerate(node)]
        return change(node, path) if isinstance(node, str) else node

    return {key: changed(value, (key,)) for key, value in tree.items()}


def _value_of(name: str, path: Path) -> str:
    key = ".".join(map(str, path))
    value = os.environ.get(name)
    if value is None:
        what, got = f"the environment variable {name} is not set", f"${{oc.env:{name}}} in the frozen configuration"
        expected = "the value that the run was started with; run folders store no secrets"
        raise ConfigError(what, where=key, got=got, expected=expected, hint=f"export {name}=...")
    remember_variable(name, value, key=key)
    return value


def _texts(node: DictConfig | ListConfig, path: Path = ()) -> Iterator[tuple[Path, str]]:
    """Yield the path and the text of every text. A value that does not resolve with marks in it is not a text."""
    for key in range(len(node)) if isinstance(node, ListConfig) else list(node):
        try:
            value: Any = node[key]
        except OmegaConfBaseException:
            continue
        if isinstance(value, DictConfig | ListConfig):
            yield from _texts(value, (*path, key))
        elif isinstance(value, str):
            yield (*path, key), value
