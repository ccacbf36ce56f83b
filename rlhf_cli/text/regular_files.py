"""Read files that another user or another program may have made: regular files, of bounded size and depth, in UTF-8.

A FIFO would hang a reader, a link to /dev/zero fill the memory, and deep JSON exceed its readers' recursion limit.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from rlhf_cli.text.json_values import JsonTree

LARGEST_TABLE = 4 << 30
_LARGEST, _LARGEST_LOG, _LONGEST_LINE = 64 << 20, 16 << 30, 16 << 20
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


def open_regular(path: Path, most_bytes: int = _LARGEST) -> BinaryIO:
    """Open a file to read bytes, never waiting for another process. Raise OSError as `require_regular` does."""
    require_regular(path, most_bytes)
    return open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")


def read_regular(path: Path, most_bytes: int = _LARGEST) -> str:
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


def _has_levels(node: object, most: int) -> bool:
    below = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    return most >= 0 and all(_has_levels(node, most - 1) for node in below)


def _whole(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise ValueError(f"a whole number of {len(digits)} digits")
    return int(digits)
