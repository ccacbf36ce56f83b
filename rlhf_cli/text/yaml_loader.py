"""Define the YAML loader, which uses libyaml if available: it takes a tenth of the time.

It refuses small files that expand to huge ones: aliases of aliases (a "billion laughs" bomb), an alias inside the node
that it names, and very deep nesting.
"""

from __future__ import annotations

from typing import IO, cast

import yaml

_MOST_VALUES = 100_000
_DEEPEST = 100
_MOST_DIGITS = 308
_INDENTED = "\n" + " " * _DEEPEST
_BASE = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class OversizedYaml(yaml.MarkedYAMLError):
    """A file would become too large or too deep with its aliases written out."""


class _LimitedLoader(_BASE):  # type: ignore[misc, valid-type]
    def __init__(self, stream: str | bytes | IO[str]) -> None:
        text = stream if isinstance(stream, str | bytes) else stream.read()
        text = text if isinstance(text, str) else text.decode("utf-8", "replace")
        if sum(map(text.count, ("[", "{", "- ", "? "))) > _DEEPEST or _INDENTED in text:
            _refuse_deep(text)
        self._has_aliases = "*" in text
        if not isinstance(stream, str | bytes):
            stream.seek(0)
        super().__init__(stream)

    def get_single_node(self) -> yaml.Node | None:
        node: yaml.Node | None = super().get_single_node()
        if node is not None and self._has_aliases:
            _refuse_oversized(node)
        return node


def _whole_number(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> int:
    if len(node.value) > _MOST_DIGITS:
        raise OversizedYaml(None, None, f"a whole number of {len(node.value)} digits", cast(yaml.Mark, node.start_mark))
    return loader.construct_yaml_int(node)


_LimitedLoader.add_constructor("tag:yaml.org,2002:int", _whole_number)
SAFE_LOADER: type[yaml.SafeLoader] = _LimitedLoader
"""Read the same values as yaml.SafeLoader; its error messages for invalid YAML are worded differently."""


def _refuse_deep(text: str) -> None:
    """Raise OversizedYaml for nesting so deep that libyaml's recursion would crash the process."""
    depth = 0
    for event in yaml.parse(text, Loader=_BASE):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEEPEST:
            raise OversizedYaml(
                None, None, f"nested more than {_DEEPEST} levels deep", cast(yaml.Mark, event.start_mark)
            )


def _refuse_oversized(root: yaml.Node) -> None:
    """Raise OversizedYaml if a document has too many values with its aliases written out, or is endless.

    A node's size is computed once, however many aliases name it.
    """
    sizes: dict[int, int] = {}
    waiting, open_nodes = [root], set[int]()
    while waiting:
        node = waiting[-1]
        below = _below(node)
        if id(node) in sizes:
            waiting.pop()
        elif id(node) not in open_nodes:
            open_nodes.add(id(node))
            if any(id(part) in open_nodes for part in below):
                raise OversizedYaml(None, None, "an alias (`*NAME`) inside its own node", node.start_mark)
            waiting += [part for part in below if id(part) not in sizes]
        else:
            waiting.pop()
            open_nodes.discard(id(node))
            sizes[id(node)] = 1 + sum(sizes[id(part)] for part in below)
            if sizes[id(node)] > _MOST_VALUES:
                problem = f"more than {_MOST_VALUES} values with its aliases (`*NAME`) written out"
                raise OversizedYaml(None, None, problem, node.start_mark)


def _below(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [part for pair in node.value for part in pair]
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []
