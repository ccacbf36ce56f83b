"""Remove padding: TRL pads every row to the longest of the whole generation batch, and trains on all of it.

Removing all-padding columns from a micro-batch changes numbers only by rounding: positions are relative, and the losses
count masked tokens only. Sorting rows by length inside one accumulation window creates more such columns; it is exact
if the loss is normalised by row or by window. Rows are never moved across optimizer steps.
"""

from __future__ import annotations

from collections.abc import Callable

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
_KNOWN |= {"old_logps"}  # RLOO's, one per row


def used_columns(mask: Tensor, num_completion: int, *, may_move: bool) -> slice:
    """Return the columns of rows (B, P + C) that hold any token; at least one of each part stays.

    `may_move`: all-padding columns on the left may be removed as well.
    """
    num_prompt = mask.shape[1] - num_completion
    used = mask.any(dim=0).nonzero().flatten()
    if not len(used):
        return slice(num_prompt - 1 if may_move else 0, num_prompt + 1)
    first = min(int(used[0]), num_prompt - 1) if may_move else 0
    return slice(first, max(int(used[-1]), num_prompt) + 1)


def trimmed(batch: TrlBatch, *, may_move: bool) -> TrlBatch:
    """Return the micro-batch without its all-padding columns; unchanged if it has unknown entries (images)."""
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
    """Return (B,), an order of rows with the longest first; mask: (B, T)."""
    return mask.sum(dim=1).argsort(descending=True, stable=True)


def reordered_in_windows(batches: list[TrlBatch], window: int, order: Callable[[TrlBatch], Tensor]) -> list[TrlBatch]:
    """Return the same rows, reordered by `order` within every `window` consecutive micro-batches.

    Such a window is one accumulation window.
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
