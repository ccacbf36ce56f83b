"""Reports keys that are a list in one file and a mapping in another: OmegaConf cannot merge the two."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import yaml

from rlhf_cli.config.origins import Origin
from rlhf_cli.errors import ConfigError
from rlhf_cli.yaml_loader import SAFE_LOADER

_WORDS = {"list": "a list", "mapping": "keys with values"}


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
                    f"{key} is {_WORDS[before[0]]} in one file and {_WORDS[shape]} in another, which cannot be merged",
                    where=f"{key} ({Origin(file, line)})",
                    got=f"{_WORDS[shape]}; {_WORDS[before[0]]} in {before[1]}",
                    expected=f"{_WORDS[before[0]]} here too"
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
