"""Find the files behind a path of data and read them row by row.

We do not use the readers of `datasets`: they turn the text "2020-01-01" into a timestamp, the CSV cells `NA` and `None`
into nulls and `007` into 7, and count lines from 0 without naming the file.
"""

from __future__ import annotations

import glob
import re
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import cast

from rlhf_cli.data.column_kinds import ColumnKind, Kind, RecordKind, as_kind, kind_of, label, merge
from rlhf_cli.data.file_readers import read_csv, read_lines, read_list, read_parquet_head, shorten
from rlhf_cli.data.source import SUFFIXES, DataSource, Row
from rlhf_cli.errors import DataError

_HELD_OUT = re.compile(r"(^|[^a-z])(test|testing|valid|validation|val|dev|eval|evaluation)([^a-z]|$)")


@dataclass
class Scan:
    """What was read from files; `seen` maps a column to the place and the text of its first value."""

    kinds: dict[str, Kind] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    num_rows: int = 0
    seen: dict[str, tuple[str, str]] = field(default_factory=dict)

    def add(self, rows: Iterable[tuple[str, Row]], limit: int, is_read: Callable[[str], bool] = bool) -> None:
        """Add `(place, row)` pairs; keep the first `limit`. Raise DataError if a read column holds two kinds."""
        for where, row in rows:
            self.num_rows += 1
            if len(self.rows) < limit:
                self.rows.append(row)
            for column, value in row.items():
                kind, known = kind_of(value), self.kinds.get(column, ColumnKind.NULL)
                merged = merge(known, kind)
                if merged == ColumnKind.MIXED and known != ColumnKind.MIXED and is_read(column):
                    first_where, first_text = self.seen.get(column, ("?", "?"))
                    what = f"the column {column!r} holds {label(known)} in one row and {label(kind)} in another"
                    got = f"{shorten(str(value), width=40)} ({label(kind)})"
                    expected = f"{label(known)}, as {first_text} in {first_where}"
                    if kind == ColumnKind.MIXED:
                        what = f"the column {column!r} holds a number of more than 64 bits"
                        got, expected = shorten(str(value), width=40), "text"
                    advice = "write every row of a column as one type; write numbers that are labels or answers as text"
                    raise DataError(what, where=where, got=got, expected=expected, advice=advice)
                self.kinds[column] = merged
                if value is not None and column not in self.seen:
                    self.seen[column] = (where, shorten(str(value), width=40))


FORMATS: dict[str, Callable[[Path, Collection[str]], Iterator[tuple[str, Row]]] | None] = {
    "jsonl": lambda path, _: read_lines(path),
    "json": lambda path, _: read_list(path),
    "csv": read_csv,
    "parquet": None,
}
"""Format -> `read(path, texts)`, which yields `(place, row)` with text in `texts`; `datasets` loads Parquet itself."""


def scan(paths: Sequence[Path], format_name: str, limit: int = 0, source: DataSource | None = None) -> Scan:
    """Read the files, and keep `limit` rows; of Parquet, read no more. Raise DataError for bad rows, or none."""
    if (read := FORMATS[format_name]) is None:
        columns, rows, num_rows = read_parquet_head(paths, limit)
        if num_rows == 0:
            raise _no_rows(paths[0])
        return Scan(dict.fromkeys(columns, ColumnKind.NULL), rows, num_rows)
    found = Scan()
    for path in paths:
        before = found.num_rows
        found.add(read(path, source.texts if source else ()), limit, source.reads if source else bool)
        if found.num_rows == before or not found.kinds:
            raise _no_rows(path)
    kind = RecordKind(found.kinds)
    return replace(found, rows=[cast(Row, as_kind(row, kind)) for row in found.rows])


def _no_rows(path: Path) -> DataError:
    advice = "was the file written to its end?"
    return DataError("no rows", where=str(path), got=f"{path.stat().st_size} bytes", advice=advice)


def find_files(source: DataSource) -> tuple[tuple[Path, ...], str]:
    """Return the files that `path` matches, in the order written (sorted in a folder or glob), and their format.

    Raise DataError if a file does not exist, has an unknown suffix or another format than the first.
    """
    where = f"{source.name}.path"
    files = [file for path in source.paths for file in _expand(path, where)]
    examples: dict[str, Path] = {}
    for file in files:
        if (name := _format_of(file)) is None:
            what, known = f"rlhf cannot read this kind of file: {file.name}", ", ".join(SUFFIXES)
            advice = _UNPACK.get(file.suffix.lower(), "convert it to .jsonl: one JSON object a line")
            advice = advice.format(shlex.quote(str(file)))
            raise DataError(what, where=where, got=str(file), expected=known, advice=advice)
        if not file.is_file():
            got, advice = f"{file}, a pipe or a device", f"cat {shlex.quote(str(file))} > FILE.jsonl"
            raise DataError("rlhf reads data several times", where=where, got=got, expected="a file", advice=advice)
        examples.setdefault(name, file)
    if len(examples) > 1:
        rows = examples[max(examples, key=lambda name: name != "json")]  # a .json beside others describes them
        got = ", ".join(f"{name}: {file.name}" for name, file in sorted(examples.items()))
        what, hint = f"the files of one source have {len(examples)} formats", f"{where}='{rows.parent}/*{rows.suffix}'"
        raise DataError(what, where=where, got=got, expected="one format, or two sources under mix", hint=hint)
    return tuple(files), next(iter(examples))


_UNPACK = {
    **{".zst": "zstd -d {0}", ".zip": "unzip {0}", ".xz": "unxz -k {0}", ".bz2": "bunzip2 -k {0}"},
    ".arrow": """python -c 'import datasets; datasets.Dataset.from_file("{0}").to_parquet("{0}.parquet")'""",
    ".feather": """python -c 'import pandas; pandas.read_feather("{0}").to_parquet("{0}.parquet")'""",
    ".txt": "jq -cR '{{text: .}}' {0} > {0}.jsonl  # each line is a row",
    ".xlsx": "save it as CSV UTF-8 in the spreadsheet program",
}
"""Ending of a file that we do not read -> the command that makes one of it that we do."""
_TO_PARQUET = """python -c 'import datasets; datasets.load_from_disk("{0}"){1}.to_parquet("{0}.parquet")'"""


def _expand(written: str, where: str) -> list[Path]:
    path = Path(written).expanduser()
    if path.is_dir():
        names = sorted(entry.name for entry in path.iterdir())
        listed, files = ", ".join(names[:8]), [path / name for name in names if _is_data_file(path / name)]
        if {"state.json", "dataset_dict.json"} & set(names):
            what, known = f"{written}: rlhf does not read folders that save_to_disk wrote", "Parquet, which is as fast"
            splits = [name for name in names if (path / name).is_dir()]
            split = "train" if "train" in splits or not splits else splits[0]
            hint = _TO_PARQUET.format(written, "" if "state.json" in names else f'["{split}"]')
            raise DataError(what, where=where, got=listed, expected=known, hint=hint)
        held_out = [file for file in files if _HELD_OUT.search(file.name.lower())]
        if 0 < len(held_out) < len(files):
            read = held_out if where.startswith("data.eval") else [file for file in files if file not in held_out]
            what = f"{written}: some files of this folder are named as test or validation data"
            wanted, hint = f"the files to read; all of them: {written}/*", f"{where}='[{','.join(map(str, read))}]'"
            raise DataError(what, where=where, got=listed, expected=wanted, hint=hint)
        if files:
            return files
        what, got = f"{written}: no data file in this folder", f"{path.resolve()}, which holds {listed or 'nothing'}"
        expected = f"files ending in {', '.join(SUFFIXES)}"
        raise DataError(what, where=where, got=got, expected=expected, **near_files(path / "*"))
    if path.exists():
        return [path]
    is_pattern = any(sign in written for sign in "*?[")
    matches = sorted(map(Path, glob.glob(str(path), recursive=True))) if is_pattern else []
    if files := [match for match in matches if match.is_file()]:
        return files
    what = f"{written}: no file matches" if is_pattern else f"{written}: no such file"
    got = f"{path.absolute()} (working directory {Path.cwd()})"
    expected = "a file, a folder, a glob such as 'data/*.jsonl', or a hub id such as openai/gsm8k"
    raise DataError(what, where=where, got=got, expected=expected, **near_files(path))


def near_files(path: Path) -> dict[str, str]:
    """Return the arguments of an error about a missing path: files with a similar name, or the data files nearby."""
    folder = path.absolute().parent
    if not folder.is_dir():
        existing = next(parent for parent in folder.parents if parent.is_dir())
        return {"advice": f"the folder {path.parent} does not exist; {existing} does"}
    if matches := get_close_matches(path.name, sorted(entry.name for entry in folder.iterdir()), cutoff=0.5):
        return {"hint": ", or ".join(str(path.parent / match) for match in matches)}
    below = [file for file in folder.glob("[!.]*/*") if file.suffix != ".json"]  # model folders are full of them
    files = [str(file.relative_to(folder)) for file in sorted([*folder.iterdir(), *below]) if _is_data_file(file)]
    return {"advice": f"data files in {folder}: {', '.join(files[:8]) or 'none'}"}


def _format_of(path: Path) -> str | None:
    """Return the name of the format that the file's suffix stands for, or None."""
    name = path.name.lower()
    return next((known for suffix, known in SUFFIXES.items() if name.endswith(suffix)), None)


def _is_data_file(path: Path) -> bool:
    return path.is_file() and _format_of(path) is not None
