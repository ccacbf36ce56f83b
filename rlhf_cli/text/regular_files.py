"""Read files that another user or another program may have made: regular files, of bounded size and depth, in UTF-8.

A FIFO would hang a reader, a link to /dev/zero fill the memory, and deep JSON exceed its readers' recursion limit. The
YAML loader, libyaml's where there is one, refuses small files that expand to huge ones: aliases of aliases (a "billion
laughs" bomb), an alias inside the node that it names, and very deep nesting.
"""

from __future__ import annotations

import ast
import errno
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

import yaml

from rlhf_cli.text.json_values import JsonTree

LARGEST_TABLE = 4 << 30
LARGEST, _LARGEST_LOG, _LONGEST_LINE = 64 << 20, 16 << 30, 16 << 20
_DEEPEST = 100
_MOST_DIGITS = 308
"""Whole numbers with more digits exceed every float."""


def require_regular(path: Path, most_bytes: int) -> None:
    """Raise OSError if a path is missing, no regular file, or larger than `most_bytes`."""
    found = os.stat(path)
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "a FIFO, a device or a folder, where a file belongs", str(path))
    if found.st_size > most_bytes:
        raise OSError(errno.EFBIG, f"{found.st_size:,} bytes, more than {most_bytes:,}", str(path))


def open_regular(path: Path, most_bytes: int = LARGEST) -> BinaryIO:
    """Open a file to read bytes, never waiting for another process. Raise OSError as `require_regular` does."""
    require_regular(path, most_bytes)
    return open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")


def read_regular(path: Path, most_bytes: int = LARGEST) -> str:
    """Return the text of a file. Raise OSError as `require_regular` does, UnicodeDecodeError for another encoding."""
    with open_regular(path, most_bytes) as stream:
        return stream.read(most_bytes).decode("utf-8")


def lines_of(path: Path) -> Iterator[bytes]:
    """Yield the lines of a log. Raise OSError as `require_regular` does, and for an endless line."""
    with open_regular(path, _LARGEST_LOG) as stream:
        while line := stream.readline(_LONGEST_LINE):
            if len(line) == _LONGEST_LINE:
                raise OSError(errno.EFBIG, f"a line of more than {_LONGEST_LINE:,} bytes", str(path))
            yield line


def read_object(path: Path) -> JsonTree:
    """Return the object in a JSON file. Raise OSError as `require_regular` does, ValueError for anything else in it."""
    content = parse_json(read_regular(path))
    if not isinstance(content, dict):
        raise ValueError(f"a {type(content).__name__}, where an object belongs")
    return content


def parse_json(text: str | bytes) -> object:
    """Return the value of a JSON text. Raise ValueError if it is invalid, too deep, or a whole number is too large."""
    try:
        content: object = json.loads(text, parse_int=_whole)
        if _has_levels(content, _DEEPEST):
            return content
    except RecursionError:
        pass
    raise ValueError(f"nested more than {_DEEPEST} levels deep")


def parse_python(source: str | bytes) -> ast.Module:
    """Return the syntax tree of Python code, bytes in the encoding that they declare. Raise only SyntaxError."""
    try:
        return ast.parse(source)
    except (MemoryError, RecursionError, ValueError) as error:
        raise SyntaxError(str(error) or "nested too deeply") from None


def _has_levels(node: object, most: int) -> bool:
    below = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    return most >= 0 and all(_has_levels(node, most - 1) for node in below)


def _whole(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise ValueError(f"a whole number of {len(digits)} digits")
    return int(digits)


_MOST_VALUES = 100_000
_INDENTED = "\n" + " " * _DEEPEST
_BASE = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class OversizedYaml(yaml.MarkedYAMLError):
    """A file would become too large or too deep with its aliases written out."""


class _LimitedLoader(_BASE):  # type: ignore[misc, valid-type]
    def __init__(self, text: str) -> None:
        if sum(map(text.count, ("[", "{", "- ", "? "))) > _DEEPEST or _INDENTED in text or "*" in text:
            _refuse_bombs(text)
        super().__init__(text)


def _whole_number(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> int:
    if len(node.value) > _MOST_DIGITS:
        raise OversizedYaml(None, None, f"a whole number of {len(node.value)} digits", cast(yaml.Mark, node.start_mark))
    return loader.construct_yaml_int(node)


_LimitedLoader.add_constructor("tag:yaml.org,2002:int", _whole_number)
SAFE_LOADER: type[yaml.SafeLoader] = _LimitedLoader
"""Read the same values as yaml.SafeLoader; its error messages for invalid YAML are worded differently."""


def _refuse_bombs(text: str) -> None:
    """Raise OversizedYaml for nesting that crashes libyaml, aliases inside their own node, and too many values."""
    sizes: dict[str | None, int] = {}
    open_nodes: list[tuple[str | None, int]] = [(None, 0)]  # name and size of each node around the event
    for event in yaml.parse(text, Loader=_BASE):
        if isinstance(event, yaml.CollectionStartEvent):
            open_nodes.append((event.anchor, 1))
            size = 0
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, size = open_nodes.pop()
            sizes[anchor] = size
        elif isinstance(event, yaml.AliasEvent):
            size = sizes.get(event.anchor, 1)
        else:
            size = int(isinstance(event, yaml.ScalarEvent))
        anchor, around = open_nodes[-1]
        open_nodes[-1] = anchor, around + size
        problem = None
        if len(open_nodes) > _DEEPEST + 1:
            problem = f"nested more than {_DEEPEST} levels deep"
        elif isinstance(event, yaml.AliasEvent) and event.anchor in [name for name, _ in open_nodes]:
            problem = "an alias (`*NAME`) inside its own node"
        elif around + size > _MOST_VALUES:
            problem = f"more than {_MOST_VALUES} values with its aliases (`*NAME`) written out"
        if problem is not None:
            raise OversizedYaml(None, None, problem, cast(yaml.Mark, event.start_mark))
