"""Read JSON Lines: one object per line; blank lines are skipped."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from rlhf_cli.data.formats.decoded_text import numbered_lines, shorten
from rlhf_cli.errors import DataError, Prose


def read(path: Path) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield the rows of a JSONL file with their `file:line`. Raise DataError at the first line that is no object."""
    yield from parsed(path, numbered_lines(path))


def parsed(path: Path, lines: Iterable[tuple[int, str]]) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield the rows of numbered lines of a file, like `read`."""
    for number, line in lines:
        if line.strip():
            where = f"{path}:{number}"
            yield where, _parse(line, where)


def _parse(line: str, where: str) -> dict[str, object]:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise _malformed(line, where, error) from None
    except RecursionError:
        raise DataError("JSON nested too deeply to read", where=where, got=shorten(line)) from None
    if not isinstance(row, dict):
        raise DataError(
            "a line that is not a JSON object",
            where=where,
            got=shorten(line),
            expected='one object a line, such as {"prompt": "..."}',
            hint=Prose("a file that is one JSON list is read when its name ends in .json")
            if line.startswith("[")
            else None,
        )
    check_text(row, line, where)
    return row


def check_text(row: object, source: str, where: str) -> None:
    r"""Raise DataError for half of a surrogate pair: JSON can spell it (`\ud83d`), UTF-8 and so Arrow cannot."""
    if "\\ud" not in source.lower():
        return
    try:
        json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"the escape \\u{ord(error.object[error.start]):04x} is half of a character",
            where=where,
            got=shorten(source, around=source.lower().find("\\ud")),
            hint=Prose("such text was cut in the middle of an emoji; repair or drop the row"),
        ) from None


def _malformed(line: str, where: str, error: json.JSONDecodeError) -> DataError:
    cut_off = not line.endswith("\n") and error.msg != "Extra data"
    return DataError(
        "the last line is cut off" if cut_off else f"malformed JSON: {error.msg} at character {error.pos + 1}",
        where=where,
        got=shorten(line, around=error.pos),
        expected="one complete JSON object a line",
        hint=Prose("the program that wrote the file was stopped; delete this line or write the file again")
        if cut_off
        else None,
    )
