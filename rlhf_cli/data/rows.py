"""Hold rows out, look for empty ones, and count prompts that two sets share, all without the slow `datasets`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from random import Random
from typing import TYPE_CHECKING, TypeAlias

from rlhf_cli.data.source import Row, missing_column
from rlhf_cli.errors import DataError
from rlhf_cli.tables.trl_trainers import IMAGES
from rlhf_cli.text.json_values import without_images

if TYPE_CHECKING:
    import datasets


@dataclass
class RowTable:
    """Rows in memory, with the methods of a `datasets.Dataset`; a column missing from a row is null there."""

    _rows: Sequence[Row]
    column_names: Sequence[str]

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, row: int) -> Row:
        return {name: self._rows[row].get(name) for name in self.column_names}

    def rename_columns(self, new_names: Mapping[str, str]) -> RowTable:
        """Return the rows with the columns `old -> new` under their new names."""
        rows = [{new_names.get(name, name): value for name, value in row.items()} for row in self._rows]
        return RowTable(rows, [new_names.get(name, name) for name in self.column_names])

    def select_columns(self, column_names: list[str]) -> RowTable:
        """Return some of the columns."""
        return RowTable(self._rows, column_names)

    def select(self, rows: Sequence[int]) -> RowTable:
        """Return some of the rows, in the order given."""
        return RowTable([self._rows[row] for row in rows], self.column_names)

    def iter(self, batch_size: int) -> Iterator[dict[str, list[object]]]:
        """Yield `column -> values` of `batch_size` rows at a time."""
        for start in range(0, len(self._rows), batch_size):
            rows = self._rows[start : start + batch_size]
            yield {name: [row.get(name) for row in rows] for name in self.column_names}


Dataset: TypeAlias = "datasets.Dataset"
Table: TypeAlias = "Dataset | RowTable"
Messages: TypeAlias = Sequence[Mapping[str, object]]


def map_rows(
    table: Table, function: Callable[..., Mapping[str, object]], adds: Mapping[str, str], **arguments: object
) -> Table:
    """Return the rows with what `function(row, index, **arguments)` gives for each.

    It adds the columns `adds`: name -> the path of a value of the same type, or "" if the first rows show the type.
    """
    if isinstance(table, RowTable):
        rows = [table[index] | dict(function(table[index], index, **arguments)) for index in range(len(table))]
        return RowTable(rows, tuple(dict.fromkeys((*table.column_names, *adds))))
    features = table.features.copy()
    for name, path in adds.items():
        kind: object = table.features
        for part in path.split("."):
            kind = kind.get(part) if isinstance(kind, dict) else getattr(kind, "feature", None)
        features.update({name: kind})  # None if it is not known
    known = features if None not in features.values() else None
    mapped: Dataset = table.map(function, with_indices=True, fn_kwargs=arguments, features=known)
    return mapped


DIALOGUES = ("messages", "conversations")  # columns that hold whole conversations
TEXT_PARTS = ("full_text", "text", "content", "value", *DIALOGUES)  # an object's keys for its text or its messages
_PAIRS = (("chosen", "rejected"), ("chosen_ids", "rejected_ids"))
_WHOLE = ("text", "input_ids")
_ASSISTANT = ("assistant", "gpt")


def prompt_key(row: Mapping[str, object]) -> bytes | None:
    """Return a digest of the row's prompt, or None if no column contains one.

    The prompt is the `prompt` column; of a dialogue, the messages before the last assistant message; of a pair without
    a prompt, the messages that both answers begin with, else both whole texts; of plain text, all of it. Images are
    part of it.
    """
    if (asked := _asked(row)) is None:
        return None
    if images := [without_images(row[name]) for name in IMAGES if row.get(name) is not None]:
        asked = [asked, images]
    return hashlib.blake2b(json.dumps(asked, sort_keys=True, default=str).encode()).digest()


def prompt_keys(table: Table) -> Iterator[bytes | None]:
    """Yield the `prompt_key` of every row."""
    known = ("prompt", *DIALOGUES, *(name for pair in _PAIRS for name in pair), *_WHOLE)
    columns = [name for name in (*known, *IMAGES) if name in table.column_names] or [*table.column_names][:1]
    for batch in table.select_columns(columns).iter(batch_size=_BATCH):
        for values in zip(*(batch[name] for name in columns), strict=True):
            yield prompt_key(dict(zip(columns, values, strict=True)))


def shared_prompts(held_out: Table, training: Sequence[Table]) -> frozenset[bytes]:
    """Return the keys of the held-out prompts that are also training prompts."""
    asked = set(prompt_keys(held_out)) - {None}
    return frozenset(key for table in training for key in prompt_keys(table) if key is not None and key in asked)


def describe_shared(shared: int, rows: int) -> str:
    """Return the warning about evaluation rows whose prompts are also trained on."""
    which = "all" if shared == rows else f"{shared} of"
    return f"{which} {rows} evaluation rows have a prompt that the model is trained on, so say little about new prompts"


def _asked(row: Mapping[str, object]) -> object:
    if row.get("prompt") is not None:
        return row["prompt"]
    for name in DIALOGUES:
        if isinstance(messages := row.get(name), list):
            answers = [place for place, message in enumerate(messages) if _role(message) in _ASSISTANT]
            return messages[: answers[-1]] if answers else messages
    for names in _PAIRS:
        chosen, rejected = (row.get(name) for name in names)
        if chosen is None or rejected is None:
            continue
        shared: list[object] = []  # none of texts and token ids: answers may begin alike
        if isinstance(chosen, list) and isinstance(rejected, list) and _role(next(iter(chosen), None)):
            alike = takewhile(lambda pair: pair[0] == pair[1], zip(chosen[:-1], rejected[:-1], strict=False))
            shared = [message for message, _ in alike] if rejected else chosen[:-1]  # a bad pair keeps its prompt
        return shared or [chosen, rejected]
    return next((row[name] for name in _WHOLE if row.get(name) is not None), None)


def _role(message: object) -> object:
    return message.get("role", message.get("from")) if isinstance(message, Mapping) else None


_BATCH = 1000
_SHOWN = 5


def hold_out(dataset: Dataset, fraction: float, seed: int) -> tuple[Dataset, Dataset]:
    """Split into (train, eval), with about `fraction` of the rows in eval, both in their original order.

    The same seed gives the same split. Rows with the same prompt go to the same side, so that no training prompt is
    evaluated; rows without a known prompt count as different. Raise DataError if there are too few prompts for both.
    """
    train, held = hold_out_places(dataset, fraction, seed)
    return dataset.select(train), dataset.select(held)


def hold_out_places(dataset: Table, fraction: float, seed: int) -> tuple[list[int], list[int]]:
    """Return the indices of the training rows and of the held-out rows of `hold_out`. Raise like it."""
    groups: dict[str, list[int]] = {}
    for index, prompt in enumerate(prompt_keys(dataset)):
        groups.setdefault(str(index) if prompt is None else prompt.hex(), []).append(index)
    order = list(groups)
    Random(seed).shuffle(order)
    wanted = round(fraction * len(dataset))
    held: set[int] = set()
    for key in order:
        held.update(groups[key] if len(held) < wanted else ())
    if not held or len(held) == len(dataset):
        what, got = f"too few prompts to hold out {fraction:g} of them", f"{len(dataset)} rows, {len(groups)} prompts"
        advice = "use more rows, another fraction, or a separate source for evaluation (data.eval.path)"
        raise DataError(what, where="data.eval", got=got, advice=advice)
    return [index for index in range(len(dataset)) if index not in held], sorted(held)


def check_rows(dataset: Table, columns: Sequence[str], name: str = "data") -> None:
    """Raise DataError, naming rows from 1, unless there are rows and no value `is_empty` in any of `columns`."""
    if len(dataset) == 0:
        advice = "look at split, select and the held-out share"
        raise DataError("the dataset has no rows", where=name, got="0 rows", advice=advice)
    for column in columns:
        if column not in dataset.column_names:
            raise missing_column(column, dataset.column_names, name)
        if empty := [number for number, value in enumerate(values_of(dataset, column), 1) if is_empty(value)]:
            what = f"the column {column!r} is empty in {len(empty)} of {len(dataset)} rows"
            got, advice = repr(dataset[empty[0] - 1][column]), "drop these rows, or name another column with `rename`"
            raise DataError(what, where=at_rows(name, *empty), got=got, expected="text or messages", advice=advice)


def kind_of_text(value: object) -> str | None:
    """Return `text` or `messages`, or None if the value is neither."""
    if isinstance(value, str):
        return "text"
    if isinstance(value, list) and value and all(isinstance(item, dict) and "role" in item for item in value):
        return "messages"
    return None


def refuse_no_text(column: str, value: object, name: str) -> str:
    """Return `text` or `messages`, the type of a column's value. Raise DataError for anything else."""
    if (kind := kind_of_text(value)) is not None:
        return kind
    what, got = f"the column {column!r} holds neither text nor messages", f"{value!r:.80} ({type(value).__name__})"
    other = f"{name}.rename.{column}=COLUMN"
    if isinstance(value, Mapping):
        part = next((key for key in (*TEXT_PARTS, *value) if kind_of_text(value.get(key)) is not None), "KEY")
        other += f", or a path into it: {name}.rename.{column}={column}.{part}"
    elif isinstance(value, list) and value and isinstance(value[0], str | list):
        other += f", or one of the list: {name}.rename.{column}={column}.0"
    elif column == "prompt" and isinstance(value, int | float):
        other = f"data.prompt='{{{column}}}'"
    expected = "text, or a list of messages: [{role: user, content: ...}]"
    advice = f"write it as text, in quotes, or use another column: {other}"
    raise DataError(what, where=name, got=got, expected=expected, advice=advice)


def at_rows(where: str, *numbers: int) -> str:
    """Return a place such as `data, rows 3, 5 (the first row is 1)`, with at most five numbers."""
    shown = ", ".join(map(str, numbers[:_SHOWN])) + (", ..." if len(numbers) > _SHOWN else "")
    return f"{where}, row{'s' if len(numbers) > 1 else ''} {shown} (the first row is 1)"


def values_of(dataset: Table, column: str) -> Iterable[object]:
    """Yield a column's values, read in batches."""
    for batch in dataset.select_columns([column]).iter(batch_size=_BATCH):
        yield from batch[column]


def is_empty(value: object) -> bool:
    """Return whether a value is null, blank text, an empty list, or messages without any text."""
    if isinstance(value, str):
        return not value.strip()
    if isinstance(value, list):
        return all(map(is_empty, value))
    if isinstance(value, Mapping):  # a message, else a part of its content
        return "role" in value and is_empty(value.get("content")) and not value.get("tool_calls")
    return value is None
