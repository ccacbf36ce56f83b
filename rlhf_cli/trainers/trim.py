"""Take padding away: TRL pads every row to the longest of the whole generation batch, and trains on all of it.

Taking all-padding columns off a micro-batch changes no number (but for rounding): positions are relative, and the
losses count masked tokens only. Sorting rows by length inside one accumulation window makes more of such columns; it
is exact where the loss is normalised by row or by window. Across optimizer steps rows are never moved.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from rlhf_cli.trainers.trl_protocol import TrlBatch

_PROMPT = ("prompt_ids", "prompt_mask")
_COMPLETION = (
    "completion_ids",
    "completion_mask",
    "tool_mask",
    "advantages",
    "returns",
    "rollout_values",
    "old_per_token_logps",
    "ref_per_token_logps",
    "sampling_per_token_logps",
    "importance_sampling_ratio",
)
_KNOWN = {*_PROMPT, *_COMPLETION, "num_items_in_batch", "is_bootstrapped", "kept_rows", "kept_batches", "kl_coef"}
_KNOWN |= {"old_logps"}  # RLOO's, one a row


class Chunk(NamedTuple):
    """Hold rows that go through a model together. `rows` are indices, `columns` is the part of the row that is kept,
    `num_completion` how many of these columns are completion.
    """

    rows: Tensor
    columns: slice
    num_completion: int


def chunks(attention_mask: Tensor, num_completion: int, batch_size: int, *, may_move: bool) -> list[Chunk]:
    """Sort rows (B, P + C) by length into chunks of `batch_size`, each with the columns that hold any token.

    `may_move`: all-padding columns may be taken off the left as well. At least one column of either part stays.
    """
    order = attention_mask.sum(dim=1).argsort(descending=True, stable=True)
    prompt = attention_mask.shape[1] - num_completion
    parts = []
    for rows in order.split(batch_size):
        used = attention_mask[rows].any(dim=0).nonzero().flatten()
        first = min(int(used[0]), prompt - 1) if len(used) and may_move else 0
        last = max(int(used[-1]), prompt) if len(used) else prompt
        parts.append(Chunk(rows, slice(first, last + 1), last + 1 - prompt))
    return parts


def in_chunks(
    function: Callable[[Chunk], tuple[Tensor | None, ...]], parts: list[Chunk], shape: tuple[int, int]
) -> tuple[Tensor | None, ...]:
    """Call `function` on every chunk and put what it returns, (rows of the chunk, its columns) each, into `shape`.

    What a chunk left out is 0.
    """
    wholes: list[Tensor | None] = []
    for part in parts:
        for index, values in enumerate(function(part)):
            if len(wholes) <= index:
                wholes.append(None if values is None else values.new_zeros(shape))
            whole = wholes[index]
            if values is not None and whole is not None:
                whole[part.rows, : values.shape[1]] = values
    return tuple(wholes)


def trimmed(batch: TrlBatch, *, may_move: bool) -> TrlBatch:
    """Return the micro-batch without its all-padding columns; as it is where it holds what we do not know (images)."""
    if not _KNOWN.issuperset(batch):
        return batch
    width = batch["completion_mask"].shape[1]
    tokens = batch["completion_mask"].any(dim=0).nonzero().flatten()
    length = int(tokens[-1]) + 1 if len(tokens) else 1
    used = batch["prompt_mask"].any(dim=0).nonzero().flatten()
    first = int(used[0]) if len(used) and may_move else 0
    cut = dict(batch)
    for name in _PROMPT:
        cut[name] = batch[name][:, first:]
    for name in _COMPLETION:
        values = batch.get(name)
        if values is not None and values.dim() == 2 and values.shape[1] == width:
            cut[name] = values[:, :length]
    return cut


def by_length(mask: Tensor) -> Tensor:
    """Return (B,) an order of rows, the longest first; mask: (B, T)."""
    return mask.sum(dim=1).argsort(descending=True, stable=True)


def reordered_in_windows(batches: list[TrlBatch], window: int, order: Callable[[TrlBatch], Tensor]) -> list[TrlBatch]:
    """Return the same rows in the order that `order` gives those of every `window` consecutive micro-batches (an
    accumulation window).
    """
    if window < 2 or any(not _KNOWN.issuperset(batch) for batch in batches):
        return batches
    reordered: list[TrlBatch] = []
    for start in range(0, len(batches), window):
        inside = batches[start : start + window]
        joined = {name: _joined(inside, name) for name in inside[0] if _is_by_row(inside[0][name])}
        rows = order(joined)
        size = inside[0]["completion_mask"].shape[0]
        for batch, own in zip(inside, rows.split(size), strict=True):
            reordered.append(batch | {name: values[own] for name, values in joined.items()})
    return reordered


def _is_by_row(value: object) -> bool:
    return isinstance(value, Tensor) and value.dim() > 0


def _joined(batches: list[TrlBatch], name: str) -> Tensor:
    return torch.cat([batch[name] for batch in batches])
