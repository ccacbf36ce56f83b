"""Turn the rows of a source into those that a trainer sees: rename, read conversations, fill in the prompt, sort."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from typing import cast

from rlhf_cli.data import dialogues
from rlhf_cli.data.column_kinds import ColumnKind, Kind, kind_of, label, merge
from rlhf_cli.data.images import with_images
from rlhf_cli.data.learnt_columns import read_columns
from rlhf_cli.data.rows import DIALOGUES, Table, at_rows, map_rows, values_of
from rlhf_cli.data.source import DataSource, Row, Template, missing_column, typed_rename
from rlhf_cli.errors import DataError
from rlhf_cli.text.template_grammar import is_text, parse


def prepare(
    table: Table, source: DataSource, prompt: Template | None, *, is_alone: bool = True, is_whole: bool = True
) -> Table:
    """Return the rows of a source after `rename` (new -> old), `transcripts`, the prompt template, `keep`, `sort`.

    `is_alone`: the source is no part of a mixture. `is_whole`: these are all of its rows, so `keep` has to keep one.
    Raise DataError for a column that the source lacks, or a row that cannot be read.
    """
    table = renamed(table, source)
    read = read_columns(source.trainer, (*table.column_names, "prompt")) if source.trainer is not None else []
    read += ["prompt", *(DIALOGUES if source.transcripts else ())]
    columns = [name for name in dict.fromkeys(read) if name in table.column_names]
    if isinstance(prompt, list):  # a text prompt has text after it
        table = dialogues.with_calls(table, columns)
    table = dialogues.read_conversations(table, columns, is_alone=is_alone, name=source.name)
    table = dialogues.with_labels(table, columns)
    table = dialogues.with_system(table, columns)
    if source.transcripts:
        table = dialogues.split_transcripts(table, is_whole=is_whole, name=source.name)
    if prompt is not None:
        for column in sorted(template_columns(prompt) - set(table.column_names)):
            error = missing_column(column, table.column_names, "data.prompt")
            if (called := source.new_name(column)) is not None:
                where = f"{source.name}.rename.{called}"
                error = DataError(f"the column {column!r} is called {called!r} here", where=where, hint=called)
            near = error.hint
            if near is not None and isinstance(prompt, str) and not {"'", '"'} & set(prompt):
                error.hint = f"data.prompt={shlex.quote(prompt.replace(f'{{{column}}}', f'{{{near}}}'))}"
            elif near is not None:
                error.hint, error.advice = None, f"write {{{near}}} for {{{column}}} in data.prompt"
            raise error
        table = map_rows(table, _add_prompt, {"prompt": ""}, template=prompt, name=source.name)
    table = dialogues.without_repeats(dialogues.with_answers(table, columns), columns)
    table = kept_and_sorted(table, source, is_whole=is_whole)
    return with_images(table, source) if source.trainer is not None and "images" in source.trainer.along else table


def renamed(table: Table, source: DataSource) -> Table:
    """Return the rows with renamed columns; columns that are taken from inside another come last.

    Raise DataError if a column does not exist or if two columns would get the same name.
    """
    columns, rename, name, new_names = table.column_names, source.rename, source.name, dict[str, str]()
    inner = {new: old for new, old in rename.items() if old not in columns and old.partition(".")[0] in columns}
    for new, old in rename.items():
        where = f"{name}.rename.{new}"
        is_taken = new in columns and new not in rename.values() and old.partition(".")[0] != new
        if old not in columns and new not in inner:
            error = missing_column(old, columns, where)
            if is_taken:  # the two names are the wrong way round
                error.hint = f"{name}.rename.{old}={new}"
            elif error.hint is not None:
                error.hint = typed_rename(name, new, error.hint)
            raise error
        if old in new_names:
            raise DataError(f"the column {old!r} is renamed twice", where=where, got=f"{new_names[old]} and {new}")
        if is_taken:
            advice = f"rename the existing column too: {name}.rename.old_{new}={new}"
            raise DataError(f"there is a column {new!r} already", where=where, got=f"{new}: {old}", advice=advice)
        new_names[old] = new
    for new in filter(source.is_read, inner):
        column, path = inner[new].partition(".")[0], {new: inner[new]}
        values = (take_nested({column: value}, 0, path, name)[new] for value in values_of(table, column))
        if _kind_of(values) == ColumnKind.MIXED:
            what, where = f"{inner[new]} holds values of several kinds", f"{name}.rename.{new}"
            raise DataError(what, where=where, expected="text in every row, or a number in every row")
    if inner:
        table = map_rows(table, take_nested, inner, inner=inner, name=name)
    return table.rename_columns({old: new for old, new in new_names.items() if new not in inner})


def take_nested(row: Mapping[str, object], _index: int, inner: Mapping[str, str], name: str = "data") -> Row:
    """Return new name -> the value at its path; a number is a place in a list. Raise DataError if a part is missing."""
    taken: Row = {}
    for new, path in inner.items():
        value: object = row
        for part in path.split("."):
            value = dialogues.as_object(value) or value
            below = dict(zip(map(str, range(len(value))), value, strict=True)) if isinstance(value, list) else value
            if not isinstance(below, Mapping | None) or (below is not None and part not in below):
                what, where = f"there is no {part!r} on the path {path}", f"{name}.rename.{new}"
                expected = f"one of {', '.join(map(str, below))}" if isinstance(below, Mapping) else "an object"
                raise DataError(what, where=where, got=f"{value!r:.80}", expected=expected)
            value = None if below is None else below[part]
        taken[new] = value
    return taken


def render(template: Template, row: Mapping[str, object], *, name: str = "data.prompt") -> str | list[dict[str, str]]:
    """Return a template filled in from a row, text or messages. Raise DataError for a column that cannot be written."""
    if isinstance(template, str):
        return _fill(template, row, name)
    return [
        {"role": message["role"], "content": _fill(message["content"], row, f"{name}[{position}]")}
        for position, message in enumerate(template)
    ]


def template_columns(template: Template) -> set[str]:
    """Return the columns that a template reads. Raise DataError if its syntax is invalid."""
    texts = [template] if isinstance(template, str) else [message["content"] for message in template]
    return {column for text in texts for column in parse(text, where="data.prompt", error=DataError).columns}


def _add_prompt(row: Row, index: int, template: Template, name: str) -> Row:
    return {"prompt": render(template, row, name=f"data.prompt, row {index + 1} of {name}")}


def _fill(template: str, row: Mapping[str, object], name: str) -> str:
    parsed = parse(template, where=name, error=DataError)
    is_filled = any(row.get(column) is not None for column in parsed.columns)
    written: Row = {}
    for column in parsed.columns:
        if column not in row:
            raise missing_column(column, list(row), name)
        value = row[column]
        is_list = isinstance(value, list) and all(map(is_text, value))  # the numbers of a countdown task
        if not is_text(value) and not is_list and (value is not None or not is_filled):
            got = "nothing (null)" if value is None else f"a {type(value).__name__}"
            what = f"the prompt template cannot use the column {column!r}"
            raise DataError(what, where=name, got=got, expected="text or a number")
        if isinstance(value, float) and value.is_integer():
            value = int(value)  # without the point that its column needs
        written[column] = "" if value is None else value
    return parsed.fill(written)


def mixed_kinds(sources: Sequence[DataSource], tables: Sequence[Table]) -> dict[str, Kind]:
    """Return the kinds of the columns of a mixture. Raise DataError if its sources disagree about one that is read."""
    found = dict[str, tuple[str, Kind]]()
    for source, table in zip(sources, tables, strict=True):
        for name in table.column_names:
            kind, nothing = _kind_of(values_of(table, name)), cast(Kind, ColumnKind.NULL)
            first, known = found.get(name, (source.name, nothing))
            merged = merge(known, kind)
            if merged == ColumnKind.MIXED and ColumnKind.MIXED not in (known, kind) and source.is_read(name):
                what = f"two sources of the mixture disagree about the column {name!r}"
                expected = f"{label(known)}, as in {first}"
                advice = f"write it alike, or give one another name: {source.name}.rename.other_{name}={name}"
                raise DataError(what, where=source.name, got=label(kind), expected=expected, advice=advice)
            found[name] = first, merged
    return {name: kind for name, (_, kind) in found.items()}


def _kind_of(values: Iterable[object]) -> Kind:
    return reduce(merge, map(kind_of, values), cast(Kind, ColumnKind.NULL))


def kept_and_sorted(table: Table, source: DataSource, *, is_whole: bool = True) -> Table:
    """Return the rows that `keep` selects, in the order of `sort` (stable). Raise DataError if none is left."""
    if source.keep is not None:
        column, low, high = source.keep
        values = _numbers(table, column, f"{source.name}.keep.column")
        places = [place for place, value in enumerate(values) if value is not None and low <= value <= high]
        if not places and is_whole:
            known = [value for value in values if value is not None]
            what, where = f"no row has {column} between {low:g} and {high:g}", f"{source.name}.keep.between"
            got = f"{min(known):g} to {max(known):g} in {len(values)} rows" if known else "nothing (null)"
            raise DataError(what, where=where, got=got, expected="a range with some rows")
        table = table.select(places)
    if source.sort is not None:
        column, falls = source.sort.removeprefix("-"), source.sort.startswith("-")
        where = f"{source.name}.sort"
        numbers = _numbers(table, column, where)
        if missing := [place + 1 for place, value in enumerate(numbers) if value is None]:
            what = f"rows cannot be sorted by {column!r}"
            raise DataError(what, where=at_rows(where, *missing), got="nothing (null)")
        ordered = cast("list[float]", numbers)
        table = table.select(sorted(range(len(ordered)), key=lambda row: -ordered[row] if falls else ordered[row]))
    return table


def _numbers(table: Table, column: str, where: str) -> list[float | None]:
    """Return a column of numbers, None for null and NaN. Raise DataError for a column of anything else."""
    if column not in table.column_names:
        error = missing_column(column, table.column_names, where)
        if error.hint is not None:
            error.hint = f"{where}={error.hint}"
        raise error
    numbers: list[float | None] = []
    for place, value in enumerate(values_of(table, column), 1):
        if value is not None and not isinstance(value, int | float):
            got = f"{value!r:.40} in row {place} (the first row is 1)"
            raise DataError(f"the column {column!r} holds no numbers", where=where, got=got, expected="numbers")
        numbers.append(None if value is None or math.isnan(value) else float(value))
    return numbers
