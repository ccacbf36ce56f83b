"""Write the output of `rlhf generate`: completions, pairs, best answers and the curve. Overwrite only on request."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from rlhf_cli.errors import RunError
from rlhf_cli.redaction import redacted_tree
from rlhf_cli.runs.run_folder import write_json, write_text

COMPLETIONS, PAIRS, BEST = "completions.jsonl", "pairs.jsonl", "best.jsonl"
CURVE, PICTURE = "best_of_n.json", "best_of_n.png"
_ALL = (COMPLETIONS, PAIRS, BEST, CURVE, PICTURE)


def make_room(folder: Path, *, overwrite: bool) -> None:
    """Create the output folder before the work starts.

    Raise RunError if it cannot be created, or if it holds such files already and `overwrite` is false.
    """
    there = [name for name in _ALL if (folder / name).exists()]
    if there and not overwrite:
        raise RunError(
            "there are completions here already",
            where=shown(folder),
            got=", ".join(there),
            expected="a folder without them",
            hint="--out FOLDER, or --overwrite",
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(
            "the completions have no place", where=str(folder), got=error.strerror, hint="--out FOLDER"
        ) from error


def write_generated(
    folder: Path, rows: Mapping[str, Sequence[Mapping[str, object]]], content: Mapping[str, object]
) -> list[Path]:
    """Write rows, keyed by file name, then the curve with its details, and return the written paths.

    Each file is written completely or not at all. A file without rows is not written, and an older version of it is
    deleted, because the files of a folder belong together.
    """
    written = []
    for name in _ALL:
        if not rows.get(name):
            (folder / name).unlink(missing_ok=True)
    for name, some in rows.items():
        if some:
            write_text(folder / name, "".join(_line(row) for row in some))
            written.append(folder / name)
    write_json(folder / CURVE, content)
    return [*written, folder / CURVE]


def shown(path: Path) -> str:
    """Return a path as a user would type it."""
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)


def _line(row: Mapping[str, object]) -> str:
    return json.dumps(redacted_tree(dict(row), values_only=True), ensure_ascii=False, default=str) + "\n"
