"""Wrap help text to the terminal's width: keep two-column lines in columns and refill paragraphs."""

from __future__ import annotations

import re
import shutil
import sys
import textwrap

_COLUMNS = re.compile(r"^(\s*\S+(?: \S+)*\s{2,})(?=\S)")
_LEAST_RIGHT = 30
"""Minimum width of the right column, in characters; below it, the text moves under the left column, indented."""


def shown_width() -> int | None:
    """Return the terminal's width, or None if stdout is not a terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def folded(text: str, width: int | None) -> str:
    """Return `text` wrapped to `width` where words allow, or unchanged if `width` is None."""
    if width is None or all(len(line) <= width for line in text.splitlines()):
        return text
    return "\n".join(line for block in _blocks(text) for line in _folded(block, width))


def _blocks(text: str) -> list[list[str]]:
    """Split the text into blocks: a paragraph, or a two-column line with its continuation lines."""
    blocks: list[list[str]] = []
    column = 0
    for line in text.splitlines():
        indent = len(line) - len(line.lstrip())
        if line.strip() and blocks and column and indent >= column:
            blocks[-1].append(line)
        elif (match := _COLUMNS.match(line)) is not None:
            blocks.append([line])
            column = len(match[1])
        elif line.strip() and blocks and blocks[-1][-1].strip() and not indent and not column and not _is_apart(blocks):
            blocks[-1].append(line)
        else:
            blocks.append([line])
            column = 0
    return blocks


def _is_apart(blocks: list[list[str]]) -> bool:
    """Return whether the last block is indented (a command, for example) and takes no further lines."""
    return blocks[-1][-1].startswith(" ")


def _folded(block: list[str], width: int) -> list[str]:
    if all(len(line) <= width for line in block):
        return block
    match = _COLUMNS.match(block[0])
    if match is None:
        indent = " " * (len(block[0]) - len(block[0].lstrip()))
        words = " ".join(line.strip() for line in block)
        return textwrap.wrap(words, width, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)
    left, text = match[1], " ".join([block[0][match.end() :], *(line.strip() for line in block[1:])])
    if width - len(left) >= _LEAST_RIGHT:
        indent = " " * len(left)
        return textwrap.wrap(text, width, initial_indent=left, subsequent_indent=indent, break_on_hyphens=False)
    indent = " " * (len(left) - len(left.lstrip()) + 4)
    below = textwrap.wrap(text, width, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)
    return [left.rstrip(), *below]
