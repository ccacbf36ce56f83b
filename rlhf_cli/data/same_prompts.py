"""Identify a row's prompt in any column format, and find evaluation prompts that are also trained on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence

from rlhf_cli.data.row_table import Table

_BATCH = 1000
_DIALOGUES = ("messages", "conversations")
_ANSWERS = (("chosen", "rejected"), ("chosen_ids", "rejected_ids"), ("input_ids_chosen", "input_ids_rejected"))
_WHOLE = ("text", "input_ids")
_ASSISTANT = ("assistant", "gpt")


def prompt_key(row: Mapping[str, object]) -> bytes | None:
    """Return a digest of the row's prompt, or None if no column contains one.

    The prompt is the `prompt` column; of a dialogue, the messages before the last assistant message; of a pair without
    a prompt, the messages that both answers begin with, else both whole texts; of plain text, all of it.
    """
    if (asked := _asked(row)) is None:
        return None
    return hashlib.blake2b(json.dumps(asked, sort_keys=True, default=str).encode(), digest_size=16).digest()


def prompt_keys(table: Table) -> Iterator[bytes | None]:
    """Yield the `prompt_key` of every row."""
    known = ("prompt", *_DIALOGUES, *(name for pair in _ANSWERS for name in pair), *_WHOLE)
    columns = [name for name in known if name in table.column_names]
    if not columns:
        yield from [None] * len(table)
        return
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
    return (
        f"{which} {rows} evaluation rows have a prompt that is also trained on: their figures are no estimate for "
        "prompts that the model has not seen"
    )


def _asked(row: Mapping[str, object]) -> object:
    if row.get("prompt") is not None:
        return row["prompt"]
    for name in _DIALOGUES:
        if isinstance(messages := row.get(name), list):
            said = [place for place, one in enumerate(messages) if _role(one) in _ASSISTANT]
            return messages[: said[-1]] if said else messages
    for names in _ANSWERS:
        chosen, rejected = (row.get(name) for name in names)
        if chosen is not None and rejected is not None:
            return _shared_beginning(chosen, rejected) or [chosen, rejected]
    return next((row[name] for name in _WHOLE if row.get(name) is not None), None)


def _shared_beginning(chosen: object, rejected: object) -> list[object]:
    """Return the messages that both begin with.

    Return an empty list for texts and token ids, because two answers may begin alike.
    """
    if not (isinstance(chosen, list) and isinstance(rejected, list) and _role(next(iter(chosen), None))):
        return []
    alike = [one == other for one, other in zip(chosen, rejected, strict=False)]
    return chosen[: alike.index(False) if False in alike else len(alike) - 1]


def _role(message: object) -> object:
    return message.get("role", message.get("from")) if isinstance(message, Mapping) else None
