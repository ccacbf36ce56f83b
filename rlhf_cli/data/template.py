"""Fill `{column}` fields in prompt templates: text or chat messages, in the syntax of `template_grammar`."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from rlhf_cli.data.source import DataSource, Template, missing_column
from rlhf_cli.errors import DataError
from rlhf_cli.text.template_grammar import is_text, parse


def render(template: Template, row: Mapping[str, object], *, name: str = "data.prompt") -> str | list[dict[str, str]]:
    """Fill a template from one row: a text gives a plain prompt, messages give a conversational one.

    Raise DataError if a column is missing, null, a list or an object.
    """
    if isinstance(template, str):
        return _fill(template, row, name)
    return [
        {"role": message["role"], "content": _fill(message["content"], row, f"{name}[{position}]")}
        for position, message in enumerate(template)
    ]


def template_columns(template: Template, *, name: str = "data.prompt") -> set[str]:
    """Return the columns that a template reads. Raise DataError if its syntax is invalid."""
    if isinstance(template, str):
        return set(parse(template, where=name, error=DataError).columns)
    contents = [message["content"] for message in template]
    return {column for content in contents for column in parse(content, where=name, error=DataError).columns}


def refuse_missing_columns(template: Template, columns: Sequence[str], source: DataSource) -> None:
    """Raise DataError if a prompt template reads a column that the source lacks, or has under another name."""
    for column in sorted(template_columns(template) - set(columns)):
        error = missing_column(column, columns, "data.prompt")
        if (new := source.new_name(column)) is not None:
            where = f"{source.name}.rename.{new}"
            error = DataError(f"the column {column!r} is called {new!r} here", where=where, hint=new)
        if error.hint is not None and isinstance(template, str) and not {"'", '"'} & set(template):
            error.hint = f"data.prompt={shlex.quote(template.replace(f'{{{column}}}', f'{{{error.hint}}}'))}"
        raise error


def _fill(template: str, row: Mapping[str, object], name: str) -> str:
    parsed = parse(template, where=name, error=DataError)
    for column in parsed.columns:
        if column not in row:
            raise missing_column(column, list(row), name)
        value = row[column]
        if not is_text(value):
            raise DataError(
                f"the column {column!r} cannot be put into a prompt",
                where=name,
                got="nothing (null)" if value is None else f"a {type(value).__name__}",
                expected="text or a number",
            )
    return parsed.fill(row)
