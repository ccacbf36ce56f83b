"""Select the columns that SFT, DPO, KTO and reward trainers read.

TRL infers the row format from the columns, and an extra column changes its choice: a text `prompt` beside `messages`,
or beside `chosen` as messages, raises a KeyError. So we keep the first complete set of columns and drop the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

from rlhf_cli.data.rows import Table, check_rows, refuse_no_text, values_of
from rlhf_cli.errors import DataError, Prose
from rlhf_cli.tables.trl_trainers import TEXT, TrainerRow
from rlhf_cli.text.suggest import nearest

if TYPE_CHECKING:
    import datasets

    Dataset: TypeAlias = datasets.Dataset

_TAKEN_ALONG = ("prompt", "margin", "tools", "chat_template_kwargs", "image", "images", "labels")
"""Optional columns that TRL reads beside a set; a prompt only with a pair."""

_READ_THROUGH = ("prompt", "completion", "chosen", "rejected")

_OTHER_NAMES = {
    "prompt": ("question", "instruction", "query", "input", "problem"),
    "completion": ("response", "answer", "output", "solution", "summary", "chosen"),
    "chosen": ("preferred", "accepted", "winner", "better", "positive", "response_chosen", "chosen_response"),
    "rejected": ("dispreferred", "loser", "worse", "negative", "response_rejected", "rejected_response"),
    "label": ("is_good", "good", "thumb", "thumbs_up", "feedback", "liked"),
}
"""Map a column to its names in other datasets."""


def learnt_columns(
    trainer: TrainerRow, columns: Sequence[str], *, text_field: str = TEXT, name: str = "data"
) -> tuple[str, ...]:
    """Return the set of columns that `trainer` learns from.

    `text_field` is the column that SFTTrainer reads as plain text. Raise DataError, with the existing columns, if no
    set is complete.
    """
    sets = [tuple(text_field if name == TEXT else name for name in names) for names in trainer.learns_from]
    for names in sets:
        if set(names) <= set(columns):
            return names
    # The most complete set; the first of equals.
    wanted = max(sets, key=lambda names: sum(name in columns for name in names) / len(names))
    missing = [name for name in wanted if name not in columns]
    renames = []
    for column in missing:
        known = next((other for other in _OTHER_NAMES.get(column, ()) if other in columns), None)
        renames.append(f"{name}.rename.{column}={known or nearest(column, columns) or 'EXISTING_COLUMN'}")
    raise DataError(
        f"the data has no column {' and no column '.join(map(repr, missing))}",
        where=name,
        got="columns " + ", ".join(columns),
        expected=trainer.expected_columns.replace(TEXT, text_field),
        hint=" ".join(renames)
        + (", or trainer.args.dataset_text_field=COLUMN" if (TEXT,) in trainer.learns_from else ""),
    )


def only_learnt(dataset: Dataset, trainer: TrainerRow, *, text_field: str = TEXT, name: str = "data") -> Dataset:
    """Return `dataset` with only the columns that `trainer` reads, after checking its rows.

    Raise DataError for missing columns, empty rows, and rows that would make TRL fail.
    """
    selected: Dataset = dataset.select_columns(check_learnt(dataset, trainer, text_field=text_field, name=name))
    return selected


def check_learnt(dataset: Table, trainer: TrainerRow, *, text_field: str = TEXT, name: str = "data") -> list[str]:
    """Check the rows, and return the columns that `trainer` learns from and TRL's optional ones.

    Raise DataError like `only_learnt`.
    """
    columns = learnt_columns(trainer, dataset.column_names, text_field=text_field, name=name)
    along = [
        column
        for column in _TAKEN_ALONG
        if column in dataset.column_names
        and column not in columns
        and (column != "prompt" or "chosen" in columns)
        and (column != "labels" or "input_ids" in columns)
    ]
    if not {"image", "images"} & set(along):
        check_rows(dataset, [column for column in columns if column in _READ_THROUGH], name)
        _check_kinds(dataset, [column for column in (*along, *columns) if column in _READ_THROUGH], name)
    for number, label in enumerate(values_of(dataset, "label") if "label" in columns else (), 1):
        if label not in (True, False):
            raise DataError(
                "a label is true or false",
                where=f"{name}, row {number} (the first row is 1)",
                got=repr(label),
                expected="true for a good answer, false for a bad one (1 and 0 will do)",
            )
    return [*columns, *along]


def _check_kinds(dataset: Table, columns: Sequence[str], name: str) -> None:
    """Raise DataError unless prompt and answer are both text or both messages, because TRL concatenates them."""
    first = dataset[0]
    kinds = {column: refuse_no_text(column, first[column], name) for column in columns}
    if len(set(kinds.values())) > 1:
        hint = "data.prompt=[{role: user, content: '{question}'}] makes messages of a text"
        if "chosen" in kinds and kinds["chosen"] == kinds["rejected"]:
            hint = "data.rename.asked=prompt leaves the prompt out, where both answers begin with it"
        raise DataError(
            "text and messages do not go together",
            where=name,
            got=", ".join(f"{column} is {kind}" for column, kind in kinds.items()),
            expected="all of them text, or all of them messages",
            hint=Prose(hint),
        )
