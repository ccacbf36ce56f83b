"""Compute the column names that the trainer will see."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from functools import partial

from rlhf_cli.data.peeking import Preview
from rlhf_cli.data.template import Template, missing_column, refuse_missing_columns, template_columns
from rlhf_cli.data.transcripts import prompt_is_made
from rlhf_cli.errors import DataError, Prose


def column_names_after(
    preview: Preview,
    rename: Mapping[str, str],
    prompt: Template | None,
    *,
    name: str = "data",
    transcripts: bool = False,
) -> tuple[str, ...]:
    """Return the columns of a previewed source after `rename` (new -> old), `transcripts` and the prompt template.

    Return an empty tuple if the preview does not know its columns (hub). Raise DataError if `rename` or the template
    uses a column that the source lacks.
    """
    if prompt is not None:
        template_columns(prompt)  # checks the template's syntax even if the columns are unknown
    if not preview.columns:
        return ()
    columns = renamed(preview.columns, rename, name=name)
    if transcripts and prompt_is_made(columns, name=name):
        columns = (*columns, "prompt")
    if prompt is None:
        return columns
    refuse_missing_columns(prompt, columns)
    return columns if "prompt" in columns else (*columns, "prompt")


def _override(key: str, value: str) -> str:
    return shlex.quote(f"{key}={value}")


def renamed(columns: Sequence[str], rename: Mapping[str, str], *, name: str = "data") -> tuple[str, ...]:
    """Return `columns` under their new names, in their old order.

    Raise DataError if a column does not exist or if two columns would get the same name.
    """
    new_names: dict[str, str] = {}
    for new, old in rename.items():
        where = f"{name}.rename.{new}"
        if old not in columns and new in columns and new not in rename.values():
            raise DataError(
                f"the data has no column {old!r}, and one that is called {new!r}",
                where=where,
                got=f"{new}: {old}",
                expected="the new name first, then the column of the data that is to have it",
                hint=f"{name}.rename.{old}={new}",
            )
        if old not in columns:
            raise missing_column(old, columns, where, partial(_override, where))
        if old in new_names:
            raise DataError(f"the column {old!r} is renamed twice", where=where, got=f"{new_names[old]} and {new}")
        if new in columns and new not in rename.values():
            raise DataError(
                f"there is a column {new!r} already",
                where=where,
                got=f"{new}: {old}",
                hint=Prose(f"give the old one another name too: {name}.rename.old_{new}={new}"),
            )
        new_names[old] = new
    return tuple(new_names.get(column, column) for column in columns)
