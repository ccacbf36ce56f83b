"""Resolve `path` of a data source to files, or recognise it as a hub id."""

from __future__ import annotations

import glob
import re
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path

from rlhf_cli.data.formats import FORMATS
from rlhf_cli.data.source import Source
from rlhf_cli.errors import DataError, Prose

SUFFIXES = {suffix: row.name for row in FORMATS.values() for suffix in row.suffixes}
"""Map a file suffix to its format."""

# Suffixes of data files that we cannot read: `prompts/mine.txt` is a missing file, not a hub id.
_OTHER_FILES = (
    ".txt",
    ".tsv",
    ".gz",
    ".zst",
    ".zip",
    ".tar",
    ".arrow",
    ".xlsx",
    ".xml",
    ".yaml",
    ".yml",
    ".pkl",
    ".db",
)
_HUB_ID = re.compile(r"(?:[\w-][\w.-]*/[\w-][\w.-]*|[\w-]+)", re.ASCII)


def is_hub(source: Source) -> bool:
    """Return whether `path` is a hub id: like `owner/name` or `name`, without a file suffix, and not on disk."""
    if len(source.paths) != 1:
        return False
    path = source.paths[0]
    looks_like_file = path.lower().endswith((*SUFFIXES, *_OTHER_FILES))
    return _HUB_ID.fullmatch(path) is not None and not looks_like_file and not Path(path).exists()


def format_of(path: Path) -> str | None:
    """Return the format that the file's suffix names, or None."""
    name = path.name.lower()
    return next((kind for suffix, kind in SUFFIXES.items() if name.endswith(suffix)), None)


def find_files(source: Source) -> tuple[tuple[Path, ...], str]:
    """Return the files that `path` matches, in the order written (sorted within a folder or glob), and their format.

    Raise DataError if a file does not exist, has an unknown suffix, or if the files have several formats.
    """
    where = f"{source.name}.path"
    files = [file for path in source.paths for file in _expand(path, where)]
    for file in files:
        if format_of(file) is None:
            raise DataError(
                f"{file.name}: no reader for this kind of file",
                where=where,
                got=str(file),
                expected=", ".join(SUFFIXES),
                hint=Prose("convert it, one JSON object a line in a .jsonl file is the simplest"),
            )
    formats = sorted({str(format_of(file)) for file in files})
    if len(formats) > 1:
        raise _several_formats(files, formats, where)
    for key in ("subset", "revision"):
        if getattr(source, key) is not None:
            raise DataError(
                f"`{key}` belongs to a hub dataset; this path is a local file",
                where=f"{source.name}.{key}",
                got=str(files[0]),
                hint=f"~{source.name}.{key}",
            )
    return tuple(files), formats[0]


def _expand(written: str, where: str) -> list[Path]:
    path = Path(written).expanduser()
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.is_file() and format_of(file) is not None)
        if not files:
            names = sorted(file.name for file in path.iterdir())
            raise DataError(
                f"{written}: no data file in this folder",
                where=where,
                got=f"{path.resolve()}, which holds {', '.join(names[:8]) or 'nothing'}",
                expected=f"files ending in {', '.join(SUFFIXES)}",
                hint=Prose(f"for folders below it: {where}='{path / '**' / '*.jsonl'}'"),
            )
        return files
    if path.exists():
        return [path]
    if any(sign in written for sign in "*?["):
        files = sorted(Path(name) for name in glob.glob(str(path), recursive=True) if Path(name).is_file())
        if not files:
            raise DataError(
                f"{written}: no file matches", where=where, got=f"pattern {path.absolute()}", hint=near_files(path)
            )
        return files
    raise DataError(
        f"{written}: no such file",
        where=where,
        got=f"{path.absolute()} (working directory {Path.cwd()})",
        expected="a file, a folder, a glob such as 'data/*.jsonl', or a hub id such as openai/gsm8k",
        hint=near_files(path),
    )


def near_files(path: Path) -> str:
    """Return a hint for a missing path: similar names, else the data files in its folder and the folders below."""
    folder = path.absolute().parent
    while not folder.is_dir():
        folder = folder.parent
    if folder != path.absolute().parent:
        return Prose(f"the folder {path.parent} does not exist; the nearest one that does is {folder}")
    names = sorted(entry.name for entry in folder.iterdir())
    matches = get_close_matches(path.name, names, n=3, cutoff=0.5)
    if matches:
        return ", or ".join(str(path.parent / match) for match in matches)
    below = [file for file in folder.glob("[!.]*/*") if file.suffix != ".json"]  # model folders are full of them
    files = [file for file in sorted([*folder.iterdir(), *below]) if file.is_file() and format_of(file) is not None]
    readable = [str(file.relative_to(folder)) for file in files]
    return Prose(f"data files in {folder}: {', '.join(readable[:8]) or 'none'}")


def _several_formats(files: Sequence[Path], formats: Sequence[str], where: str) -> DataError:
    examples = {str(format_of(file)): file.name for file in reversed(files)}
    pattern = files[0].parent / f"*.{formats[0]}"
    return DataError(
        f"files of {len(formats)} formats in one source",
        where=where,
        got=", ".join(f"{kind}: {examples[kind]}" for kind in formats),
        expected="one format",
        hint=Prose(f"a pattern for one of them, such as {where}='{pattern}', or two sources under mix"),
    )
