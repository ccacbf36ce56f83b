"""Find the files behind a path of data and read them row by row.

We do not use the readers of `datasets`: they turn the text "2020-01-01" into a timestamp, the CSV cells `NA` and `None`
into nulls and `007` into 7, and count lines from 0 without naming the file.
"""

from __future__ import annotations

import contextlib
import glob
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from itertools import islice
from pathlib import Path

from rlhf_cli.data import json_files
from rlhf_cli.data.file_readers import MIXED, NULL, Kind, kind_of, label, merge, read_csv, shorten
from rlhf_cli.data.source import SUFFIXES, DataSource, Row
from rlhf_cli.errors import DataError


def rows_of(format_name: str, path: Path, texts: Collection[str] = ()) -> Iterator[tuple[str, Row]]:
    """Yield `(place, row)` of a JSONL, JSON or CSV file; `texts` are the columns of a CSV that stay text."""
    if format_name == "csv":
        return read_csv(path, texts)
    return json_files.read_lines(path) if format_name == "jsonl" else json_files.read_list(path)


def format_of(path: Path) -> str | None:
    """Return the format that the file's suffix names, or None."""
    name = path.name.lower()
    return next((kind for suffix, kind in SUFFIXES.items() if name.endswith(suffix)), None)


def find_files(source: DataSource) -> tuple[tuple[Path, ...], str]:
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
                advice="convert it, one JSON object a line in a .jsonl file is the simplest",
            )
        if not file.is_file():
            got, advice = f"{file}, a pipe or a device", f"cat {file} > FILE.jsonl"
            raise DataError(
                "data is read several times", where=where, got=got, expected="a regular file", advice=advice
            )
    examples = {str(format_of(file)): file.name for file in reversed(files)}
    if len(examples) > 1:
        raise DataError(
            f"files of {len(examples)} formats in one source",
            where=where,
            got=", ".join(f"{kind}: {name}" for kind, name in sorted(examples.items())),
            expected="one format",
            advice=f"a pattern for one of them, such as {where}='*.{min(examples)}', or two sources under mix",
        )
    return tuple(files), next(iter(examples))


_TO_PARQUET = """python -c 'import datasets; datasets.load_from_disk("{0}"){1}.to_parquet("{0}.parquet")'"""


def _expand(written: str, where: str) -> list[Path]:
    path = Path(written).expanduser()
    if path.is_dir():
        if (path / "state.json").is_file() or (path / "dataset_dict.json").is_file():
            raise DataError(
                f"{written}: a folder of save_to_disk, which is not read",
                where=where,
                got=", ".join(sorted(file.name for file in path.iterdir())[:8]),
                expected="Parquet, which `datasets` writes and reads as fast",
                hint=_TO_PARQUET.format(written, "" if (path / "state.json").is_file() else '["train"]'),
            )
        files = sorted(file for file in path.iterdir() if file.is_file() and format_of(file) is not None)
        if not files:
            names = sorted(file.name for file in path.iterdir())
            raise DataError(
                f"{written}: no data file in this folder",
                where=where,
                got=f"{path.resolve()}, which holds {', '.join(names[:8]) or 'nothing'}",
                expected=f"files ending in {', '.join(SUFFIXES)}",
            )
        return files
    if path.exists():
        return [path]
    if any(sign in written for sign in "*?["):
        files = sorted(Path(name) for name in glob.glob(str(path), recursive=True) if Path(name).is_file())
        if not files:
            raise DataError(
                f"{written}: no file matches", where=where, got=f"pattern {path.absolute()}", **near_files(path)
            )
        return files
    raise DataError(
        f"{written}: no such file",
        where=where,
        got=f"{path.absolute()} (working directory {Path.cwd()})",
        expected="a file, a folder, a glob such as 'data/*.jsonl', or a hub id such as openai/gsm8k",
        **near_files(path),
    )


def near_files(path: Path) -> dict[str, str]:
    """Return what to type in the place of a missing path, or advice: the data files in its folder and those below."""
    folder = path.absolute().parent
    while not folder.is_dir():
        folder = folder.parent
    if folder != path.absolute().parent:
        return {"advice": f"the folder {path.parent} does not exist; the nearest one that does is {folder}"}
    names = sorted(entry.name for entry in folder.iterdir())
    matches = get_close_matches(path.name, names, n=3, cutoff=0.5)
    if matches:
        return {"hint": ", or ".join(str(path.parent / match) for match in matches)}
    below = [file for file in folder.glob("[!.]*/*") if file.suffix != ".json"]  # model folders are full of them
    files = [file for file in sorted([*folder.iterdir(), *below]) if file.is_file() and format_of(file) is not None]
    readable = [str(file.relative_to(folder)) for file in files]
    return {"advice": f"data files in {folder}: {', '.join(readable[:8]) or 'none'}"}


_LARGE_BYTES = 8 << 20
"""Python reads smaller files, which avoids importing Arrow."""

_FIRST_ROWS = 1000
"""Rows that determine the column types of a large file, unless the caller wants to keep more."""

_MOST_KEPT_ROWS = 100_000
"""A caller that wants to keep more rows gets all of them from Python."""


@dataclass
class Scan:
    """The result of reading files: the kind of every column, the first rows, the number of rows.

    `seen` maps a column to the place and text of its first value.
    """

    kinds: dict[str, Kind] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    num_rows: int = 0
    seen: dict[str, tuple[str, str]] = field(default_factory=dict)

    def add(self, rows: Iterable[tuple[str, Row]], limit: int) -> None:
        """Add `(place, row)` pairs, and keep the rows until there are `limit`.

        Raise DataError if a column holds two kinds of value.
        """
        for where, row in rows:
            self.num_rows += 1
            if len(self.rows) < limit:
                self.rows.append(row)
            for column, value in row.items():
                kind, known = kind_of(value), self.kinds.get(column, NULL)
                merged = merge(known, kind)
                if merged == MIXED:
                    first_where, first_text = self.seen.get(column, ("?", "?"))
                    hint = "write every row of a column as one type; numbers that are labels or answers are best "
                    raise DataError(
                        f"the column {column!r} holds {label(known)} in one row and {label(kind)} in another",
                        where=where,
                        got=f"{shorten(str(value), width=40)} ({label(kind)})",
                        expected=f"{label(known)}, as {first_text} in {first_where}",
                        advice=hint + "written as text",
                    )
                self.kinds[column] = merged
                if value is not None and column not in self.seen:
                    self.seen[column] = (where, shorten(str(value), width=40))


def scan(paths: Sequence[Path], format_name: str, limit: int = 0, *, texts: Collection[str] = ()) -> Scan:
    """Read JSONL, JSON or CSV files to their end and keep at most `limit` rows; `texts` are text columns of a CSV.

    Raise DataError on the first bad line, on a column that holds two kinds of value, and on a file without rows.
    """
    if limit <= _MOST_KEPT_ROWS and is_large(paths, format_name):
        import pyarrow as pa

        found = Scan()
        # The scan by rows below reports an error and its line.
        with contextlib.suppress(DataError, pa.ArrowException, OSError):
            found.add(islice(rows_of(format_name, paths[0]), max(limit, _FIRST_ROWS)), limit)
            found.num_rows = 0
            for path in paths:
                before = found.num_rows
                found.num_rows += sum(batch.num_rows for batch in json_files.read_by_arrow(path, found.kinds))
                if found.num_rows == before:
                    raise no_rows(path)
            return found
    found = Scan()
    for path in paths:
        before = found.num_rows
        found.add(rows_of(format_name, path, texts), limit)
        if found.num_rows == before or not found.kinds:
            raise no_rows(path)
    return found


def is_large(paths: Sequence[Path], format_name: str) -> bool:
    """Return whether to read these files by Arrow, which pays for its import."""
    return format_name == "jsonl" and sum(path.stat().st_size for path in paths) > _LARGE_BYTES


def no_rows(path: Path) -> DataError:
    """Return the error for a file without rows."""
    return DataError(
        "no rows", where=str(path), got=f"{path.stat().st_size} bytes", advice="was the file written to its end?"
    )
