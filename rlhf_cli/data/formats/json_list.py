"""Read a JSON file that is one list of objects."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from rlhf_cli.data.formats.decoded_text import numbered_lines, shorten
from rlhf_cli.data.formats.json_lines import check_text
from rlhf_cli.errors import DataError, Prose

_EXPECTED = 'a list of objects, such as [{"prompt": "..."}]'


def read(path: Path) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield the rows with their place, `file: item 3` (from 1; a parsed JSON value has no line number).

    Raise DataError if the file is not a list of objects.
    """
    text = "".join(line for _, line in numbered_lines(path))
    if not text.strip():
        return
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        lines = text.splitlines()
        one_object_a_line = error.msg == "Extra data" and text.lstrip().startswith("{")
        raise DataError(
            "several JSON values in a .json file" if one_object_a_line else f"malformed JSON: {error.msg}",
            where=f"{path}:{error.lineno}",
            got=shorten(lines[error.lineno - 1] if error.lineno <= len(lines) else "", around=error.colno),
            expected=_EXPECTED,
            hint=Prose("one object a line is JSONL: rename the file to .jsonl") if one_object_a_line else None,
        ) from None
    except RecursionError:
        raise DataError("JSON nested too deeply to read", where=str(path), got=shorten(text)) from None
    if not isinstance(value, list):
        keys = f"an object with the keys {', '.join(map(repr, list(value)[:8]))}" if isinstance(value, dict) else None
        raise DataError(
            "a JSON file that is not a list", where=str(path), got=keys or shorten(text), expected=_EXPECTED
        )
    for number, row in enumerate(value, 1):
        where = f"{path}: item {number}"
        if not isinstance(row, dict):
            got = shorten(json.dumps(row, ensure_ascii=False))
            raise DataError("an item that is not a JSON object", where=where, got=got, expected=_EXPECTED)
        yield where, row
    check_text(value, text, str(path))
