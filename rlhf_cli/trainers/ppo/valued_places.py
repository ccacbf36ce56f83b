"""Prepare rows for a critic, and find the positions with a value: before every completion token, and after the last."""

from __future__ import annotations

import torch
from torch import Tensor

from rlhf_cli.packing.packed_rows import packed_rows
from rlhf_cli.packing.row_attention import model_inputs
from rlhf_cli.trainers.token_slots import count
from rlhf_cli.trainers.trim import used_columns
from rlhf_cli.trainers.trl_protocol import TrlBatch


def whole_rows(batch: TrlBatch) -> tuple[Tensor, Tensor]:
    """Return (B, P + C) ids and mask of a batch's prompts and completions."""
    ids, mask = (torch.cat([batch[f"prompt_{part}"], batch[f"completion_{part}"]], dim=1) for part in ("ids", "mask"))
    return ids, mask


def has_value(mask: Tensor, num_completion: int) -> Tensor:
    """Return (B, C + 1) bool: True before every completion token and after a row's last, for (B, P + C) masks."""
    counts = mask[:, -num_completion:].sum(dim=1)
    return torch.arange(num_completion + 1, device=mask.device) <= counts.unsqueeze(1)


def laid_out(
    ids: Tensor, mask: Tensor, num_completion: int, *, is_packed: bool, may_move: bool
) -> tuple[dict[str, object], Tensor]:
    """Return the model's input for (B, P + C) rows, and its positions with a value, row by row.

    `may_move`: rows may be moved to the left.
    """
    rows = packed_rows(ids, mask, num_completion, with_last=True) if is_packed else None
    if rows is not None:
        count(rows.input_ids.shape[1], mask.sum())
        return model_inputs(rows), rows.states_around()
    columns = used_columns(mask, num_completion, may_move=may_move)
    ids_cut = ids[:, columns]
    count(ids_cut.numel(), mask.sum())
    places = torch.arange(ids_cut.numel(), device=ids.device).view_as(ids_cut)
    places = places[:, ids.shape[1] - num_completion - 1 - columns.start :]
    valued = places[has_value(mask, num_completion)[:, : places.shape[1]]]
    return {"input_ids": ids_cut, "attention_mask": mask[:, columns]}, valued
