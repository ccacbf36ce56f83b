"""Print a configuration with its origins."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rich.console import Console
from rich.text import Text

from rlhf_cli.config.origins import Origins
from rlhf_cli.project.reference.reward_reference import as_yaml

_FURTHEST_ORIGIN = 56


def show_configuration(console: Console, tree: Mapping[str, object], origins: Origins) -> None:
    """Print the values of a tree. A key that was not written anywhere is marked `default`."""
    lines = list(_lines(tree, origins, "", 0))
    column = min(_FURTHEST_ORIGIN, max((len(line) for line, origin in lines if origin), default=0) + 2)
    for line, origin in lines:
        if origin:
            line.append(" " * max(2, column - len(line.plain)))
            line.append(f"# {origin}", style="dim")
        console.print(line, soft_wrap=True)


def _lines(node: Mapping[str, object], origins: Origins, prefix: str, depth: int) -> Iterator[tuple[Text, str]]:
    for name, value in node.items():
        key = f"{prefix}.{name}" if prefix else name
        line = Text("  " * depth)
        line.append(f"{name}:", style="bold")
        if isinstance(value, dict) and value:
            yield line, ""
            yield from _lines(value, origins, key, depth + 1)
            continue
        origin = str(origins.by_key.get(key) or "default")
        if isinstance(value, list) and any(isinstance(one, dict) for one in value):
            yield line, origin
            for one in value:
                yield Text(f"{'  ' * (depth + 1)}- {as_yaml(_without_nulls(one))}"), ""
            continue
        line.append(f" {as_written(value)}")
        yield line, origin


def as_written(value: object) -> str:
    """Return a value as YAML on one line; an entry of a list without its null values."""
    if isinstance(value, list):
        value = [_without_nulls(one) for one in value]
    return as_yaml(value)


def _without_nulls(entry: object) -> object:
    return {name: one for name, one in entry.items() if one is not None} if isinstance(entry, dict) else entry
