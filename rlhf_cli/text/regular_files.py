"""Read files that another user or another program may have made: regular files, of bounded size and depth, in UTF-8.

A FIFO would hang a reader, a link to /dev/zero fill the memory, and deep JSON exceed the recursion of whoever walks it.
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

MOST_BYTES = 64 << 20
LARGEST_TABLE = 4 << 30
_MOST_LOGGED = 16 << 30
_LONGEST_LINE = 16 << 20
_DEEPEST = 100
_MOST_DIGITS = 308
"""Whole numbers with more digits exceed every float."""
_KINDS = {stat.S_IFIFO: "a FIFO", stat.S_IFDIR: "a folder", stat.S_IFSOCK: "a socket"}


def require_regular(path: Path, most_bytes: int = MOST_BYTES) -> None:
    """Raise OSError if a path is missing, no regular file, or larger than `most_bytes`."""
    _judge(path, os.stat(path), most_bytes)


def open_regular(path: Path, most_bytes: int = MOST_BYTES) -> BinaryIO:
    """Open a file to read bytes. Raise OSError as `require_regular` does; never wait for another process."""
    require_regular(path, most_bytes)
    stream = open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")  # noqa: SIM115  the caller closes it
    try:
        _judge(path, os.fstat(stream.fileno()), most_bytes)
    except OSError:
        stream.close()
        raise
    return stream


def _judge(path: Path, found: os.stat_result, most_bytes: int) -> None:
    if not stat.S_ISREG(found.st_mode):
        kind = _KINDS.get(stat.S_IFMT(found.st_mode), "a device")
        raise OSError(errno.EINVAL, f"{kind}, where a file belongs", str(path))
    if found.st_size > most_bytes:
        raise OSError(errno.EFBIG, f"{found.st_size:,} bytes, more than {most_bytes:,}", str(path))


def read_regular(path: Path, most_bytes: int = MOST_BYTES) -> str:
    """Return the text of a file. Raise OSError as `open_regular` does, UnicodeDecodeError for another encoding."""
    with open_regular(path, most_bytes) as stream:
        return stream.read(most_bytes).decode("utf-8")


def lines_of(path: Path) -> Iterator[bytes]:
    """Yield the lines of a log without their ends. Raise OSError as `open_regular` does, and for an endless line."""
    with open_regular(path, _MOST_LOGGED) as stream:
        while line := stream.readline(_LONGEST_LINE):
            if len(line) == _LONGEST_LINE:
                raise OSError(errno.EFBIG, f"a line of more than {_LONGEST_LINE:,} bytes", str(path))
            yield line.rstrip(b"\n")


def read_object(path: Path) -> JsonTree:
    """Return the object in a JSON file. Raise OSError as `open_regular` does, ValueError for anything else in it."""
    content = parse_json(read_regular(path))
    if not isinstance(content, dict):
        raise ValueError(f"a {type(content).__name__}, where an object belongs")
    return content


def parse_json(text: str | bytes) -> object:
    """Return the value of a JSON text. Raise ValueError if it is invalid, too deep, or a whole number is too large."""
    try:
        content: object = json.loads(text, parse_int=_whole)
    except RecursionError:
        raise ValueError(f"nested more than {_DEEPEST} levels deep") from None
    level, depth = [content], 0
    while level := [
        one
        for node in level
        if isinstance(node, dict | list)
        for one in (node.values() if isinstance(node, dict) else node)
    ]:
        depth += 1
        if depth > _DEEPEST:
            raise ValueError(f"nested more than {_DEEPEST} levels deep")
    return content


def _whole(digits: str) -> int:
    if len(digits.lstrip("-")) > _MOST_DIGITS:
        raise ValueError(f"a whole number of {len(digits)} digits")
    return int(digits)
