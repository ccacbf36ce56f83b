"""Convert tokenised preference pairs from older column names to TRL's current ones.

TRL 1.16 trains on `chosen_ids` and `rejected_ids` without padding. The format of before 2025 has `input_ids_chosen`,
`attention_mask_chosen`, `input_ids_rejected` and `attention_mask_rejected`, padded or not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from rlhf_cli.errors import DataError, Prose

if TYPE_CHECKING:
    import datasets

    Dataset: TypeAlias = datasets.Dataset

IDS = ("chosen_ids", "rejected_ids")
_FORMER = (
    {"chosen_ids": ("input_ids_chosen", "attention_mask_chosen")}
    | {"rejected_ids": ("input_ids_rejected", "attention_mask_rejected")},
    {"chosen_ids": ("chosen_input_ids", "chosen_attention_mask")}
    | {"rejected_ids": ("rejected_input_ids", "rejected_attention_mask")},
)


def is_tokenised(columns: Sequence[str]) -> bool:
    """Return whether these columns hold pairs of token ids, under current or former names."""
    return set(IDS) <= set(columns) or _former_names(columns) is not None


def with_ids(dataset: Dataset, *, name: str = "data") -> Dataset:
    """Return the dataset with `chosen_ids` and `rejected_ids` instead of a former format's columns.

    Other columns stay. Raise DataError if an attention mask masks more than padding at one end.
    """
    names = _former_names(dataset.column_names)
    if names is None or set(IDS) <= set(dataset.column_names):
        return dataset
    former = [column for pair in names.values() for column in pair if column in dataset.column_names]
    renamed: Dataset = dataset.map(
        _cut_row, with_indices=True, remove_columns=former, fn_kwargs={"names": names, "name": name}
    )
    return renamed


def cut_padding(ids: object, mask: object, where: str) -> list[int]:
    """Return the ids that `mask` (None: all ones) keeps. Raise DataError unless they are contiguous."""
    if not isinstance(ids, list) or not all(isinstance(token, int) for token in ids):
        raise DataError("not a list of token ids", where=where, got=f"{ids!r:.80}")
    if mask is None:
        return ids
    if not isinstance(mask, list) or len(mask) != len(ids) or not set(mask) <= {0, 1}:
        raise DataError(
            "the attention mask is not one 0 or 1 a token id",
            where=where,
            got=f"{len(ids)} ids, mask {mask!r:.80}",
        )
    kept = [place for place, bit in enumerate(mask) if bit]
    if not kept:
        return []
    first, last = kept[0], kept[-1]
    if len(kept) != last - first + 1:
        raise DataError(
            "the attention mask leaves out tokens in the middle",
            where=where,
            got=f"mask {mask!r:.80}",
            expected="zeros for padding at one end: TRL attends to every token of an answer",
            hint=Prose("drop such rows, or the tokens themselves"),
        )
    return ids[first : last + 1]


def _former_names(columns: Sequence[str]) -> dict[str, tuple[str, str]] | None:
    return next((names for names in _FORMER if all(ids in columns for ids, _ in names.values())), None)


def _cut_row(
    row: Mapping[str, object], index: int, names: Mapping[str, tuple[str, str]], name: str
) -> dict[str, list[int]]:
    return {
        new: cut_padding(row[ids], row.get(mask), f"{name}, row {index + 1}, column {ids} (the first row is 1)")
        for new, (ids, mask) in names.items()
    }
