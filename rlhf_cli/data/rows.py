"""Hold out evaluation rows, and check rows before the model is loaded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from random import Random
from typing import TYPE_CHECKING, TypeAlias

from rlhf_cli.data.row_table import Table
from rlhf_cli.data.same_prompts import prompt_keys
from rlhf_cli.data.template import missing_column
from rlhf_cli.errors import DataError, Prose

if TYPE_CHECKING:
    import datasets

    Dataset: TypeAlias = datasets.Dataset

_BATCH = 1000
_SHOWN = 5


def hold_out(dataset: Dataset, fraction: float, seed: int, *, name: str = "data.eval") -> tuple[Dataset, Dataset]:
    """Split into (train, eval), with about `fraction` of the rows in eval, both in their original order.

    The same seed gives the same split. All rows with the same prompt go to the same side, so that a task with repeated
    prompts is not evaluated on its training prompts. Rows without a known prompt count as different. Raise DataError if
    the fraction is outside (0, 1) or if there are too few prompts for both sides.
    """
    train, held = hold_out_places(dataset, fraction, seed, name=name)
    return dataset.select(train), dataset.select(held)


def hold_out_places(
    dataset: Table, fraction: float, seed: int, *, name: str = "data.eval"
) -> tuple[list[int], list[int]]:
    """Return the indices of the training rows and of the held-out rows of `hold_out`. Raise like it."""
    if not 0 < fraction < 1:
        raise DataError("a held-out share lies between 0 and 1", where=name, got=fraction, expected="such as 0.1")
    groups: dict[str, list[int]] = {}
    for index, prompt in enumerate(prompt_keys(dataset)):
        groups.setdefault(str(index) if prompt is None else prompt.hex(), []).append(index)
    order = list(groups)
    Random(seed).shuffle(order)
    wanted = round(fraction * len(dataset))
    held: list[int] = []
    for key in order:
        if len(held) >= wanted:
            break
        held += groups[key]
    if not held or len(held) == len(dataset):
        raise DataError(
            f"too few prompts to hold out {fraction:g} of them",
            where=name,
            got=f"{len(dataset)} rows, {len(groups)} different prompts",
            hint=Prose("a larger dataset, another share, or a source of its own for evaluation"),
        )
    out = set(held)
    train = [index for index in range(len(dataset)) if index not in out]
    return train, sorted(held)


def check_rows(dataset: Table, columns: Sequence[str], name: str = "data") -> None:
    """Raise DataError unless there are rows and each has a value in each of `columns`.

    Null, blank text, an empty list, and messages without any text do not count. Rows are numbered from 1.
    """
    if len(dataset) == 0:
        raise DataError(
            "an empty dataset", where=name, got="0 rows", hint=Prose("look at split, select and the held-out share")
        )
    for column in columns:
        if column not in dataset.column_names:
            raise missing_column(column, dataset.column_names, name)
        empty = [number for number, value in enumerate(values_of(dataset, column), 1) if is_empty(value)]
        if empty:
            raise DataError(
                f"nothing in the column {column!r} of {len(empty)} of {len(dataset)} rows",
                where=f"{name}, {numbered(empty)} (the first row is 1)",
                got=repr(dataset[empty[0] - 1][column]),
                expected="text or messages",
                hint=Prose("drop these rows from the file, or name another column with `rename`"),
            )


def check_prompts(dataset: Table, name: str = "data") -> None:
    """Raise DataError unless there are rows and each has a prompt: a text or a list of messages."""
    check_rows(dataset, ["prompt"], name)
    refuse_no_text("prompt", dataset[0]["prompt"], name)


def refuse_no_text(column: str, value: object, name: str) -> str:
    """Return `text` or `messages`, the type of a column's value. Raise DataError for anything else."""
    if isinstance(value, str):
        return "text"
    if isinstance(value, list) and all(isinstance(item, dict) and "role" in item for item in value):
        return "messages"
    raise DataError(
        f"the column {column!r} holds neither text nor messages",
        where=name,
        got=f"{value!r:.80} ({type(value).__name__})",
        expected="text, or a list of messages: [{role: user, content: ...}]",
        hint=Prose(f"write it as text, in quotes, or make it of another column: data.prompt='{{{column}}}'")
        if column == "prompt"
        else Prose(f"write it as text, in quotes, or name another column: {name}.rename.{column}=COLUMN"),
    )


def numbered(numbers: Sequence[int]) -> str:
    """Return `rows 3, 5`, with at most five numbers."""
    shown = ", ".join(map(str, numbers[:_SHOWN])) + (", ..." if len(numbers) > _SHOWN else "")
    return f"row{'s' if len(numbers) > 1 else ''} {shown}"


def values_of(dataset: Table, column: str) -> Iterable[object]:
    """Yield a column's values, read in batches."""
    for batch in dataset.select_columns([column]).iter(batch_size=_BATCH):
        yield from batch[column]


def is_empty(value: object) -> bool:
    """Return whether a value is null, blank text, an empty list, or messages without any text."""
    if isinstance(value, str):
        return not value.strip()
    if isinstance(value, list):
        return all(is_empty(item.get("content")) if isinstance(item, dict) else is_empty(item) for item in value)
    return value is None
