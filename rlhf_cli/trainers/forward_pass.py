"""Lay rows out for a forward pass, trimmed or packed, and switch dropout off.

Removing all-padding columns from a micro-batch changes numbers only by rounding: positions are relative, and the losses
count masked tokens only. Sorting rows by length inside one accumulation window creates more such columns; it is exact
if the loss is normalised by row or by window. Rows are never moved across optimizer steps.

PPO compares the policy in training with the policy of the rollout, token by token. With dropout, both are randomly
thinned models, whose ratio is not 1 even without an update. So TRL's PPOTrainer (until 1.12) and verl train without it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

from rlhf_cli.models.live_generation import dropout_attributes
from rlhf_cli.trainers.step_profile import count
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
_KNOWN |= {"old_logps", "in_window"}  # RLOO's, one per row; numbers that reward_mixin.py counts


def used_columns(mask: Tensor, num_completion: int, *, may_move: bool) -> slice:
    """Return the columns of rows (B, P + C) that hold any token; at least one of each part stays.

    `may_move`: columns of padding on the left may be removed as well.
    """
    num_prompt = mask.shape[1] - num_completion
    used = mask.any(dim=0).tolist()  # a GPU is waited for once
    if not any(used):
        return slice(num_prompt - 1 if may_move else 0, num_prompt + 1)
    first = min(used.index(True), num_prompt - 1) if may_move else 0
    return slice(first, max(len(used) - used[::-1].index(True), num_prompt + 1))


def model_rows(
    ids: Tensor, mask: Tensor, num_completion: int, *, is_packed: bool, may_move: bool, with_last: bool = False
) -> tuple[dict[str, object], Tensor]:
    """Return the model's input for (B, P + C) rows, and the places of the states before each completion token.

    Rows that cannot be packed are trimmed. `may_move`: rows may be moved to the left. `with_last`: also the places of
    the states after a row's last token.
    """
    from rlhf_cli.models.packing.packed_rows import packed_rows
    from rlhf_cli.models.packing.row_attention import model_inputs

    rows = packed_rows(ids, mask, num_completion, with_last=with_last) if is_packed else None
    if rows is not None:
        count(rows.input_ids.shape[1], mask.sum())
        return model_inputs(rows), rows.states(with_last=with_last)
    columns = used_columns(mask, num_completion, may_move=may_move)
    cut = ids[:, columns]
    count(cut.numel(), mask.sum())
    is_read = has_value(mask, num_completion) if with_last else mask[:, -num_completion:].bool()
    places = torch.arange(cut.numel(), device=ids.device).view_as(cut)
    places = places[:, ids.shape[1] - num_completion - 1 - columns.start :][:, : is_read.shape[1]]
    return {"input_ids": cut, "attention_mask": mask[:, columns]}, places[is_read[:, : places.shape[1]]]


def has_value(mask: Tensor, num_completion: int) -> Tensor:
    """Return (B, C + 1) bool: True before every completion token and after a row's last, for (B, P + C) masks."""
    counts = mask[:, -num_completion:].sum(dim=1)
    return torch.arange(num_completion + 1, device=mask.device) <= counts.unsqueeze(1)


def trimmed(batch: TrlBatch, *, may_move: bool) -> TrlBatch:
    """Return the micro-batch without its all-padding columns; unchanged if it has unknown entries (images)."""
    if not _KNOWN.issuperset(batch):
        return batch
    width = batch["completion_mask"].shape[1]
    mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
    columns = used_columns(mask, width, may_move=may_move)
    length = columns.stop - mask.shape[1] + width
    cut = dict(batch)
    for name in _PROMPT:
        cut[name] = batch[name][:, columns.start :]
    for name in _COMPLETION:
        if (values := batch.get(name)) is not None and values.dim() == 2 and values.shape[1] == width:
            cut[name] = values[:, :length]
    return cut


def with_two_columns(batch: TrlBatch) -> TrlBatch:
    """Return the micro-batch with a column of padding if it has only one: TRL takes (B, 1) for one number per row."""
    if batch["completion_mask"].shape[1] != 1 or not _KNOWN.issuperset(batch):
        return batch
    twice = dict(batch)
    for name in _COMPLETION:  # importance_sampling_ratio may be one number per row
        if name != "importance_sampling_ratio" and getattr(batch.get(name), "ndim", 0) == 2:
            twice[name] = nn.functional.pad(batch[name], (0, 1))
    return twice


def by_length(mask: Tensor) -> Tensor:
    """Return (B,), an order of rows with the longest first; mask: (B, T)."""
    return mask.sum(dim=1).argsort(descending=True, stable=True)


def reordered_in_windows(batches: list[TrlBatch], window: int, order: Callable[[TrlBatch], Tensor]) -> list[TrlBatch]:
    """Return the same rows, reordered by `order` within every accumulation window of `window` micro-batches."""
    if window < 2 or not _KNOWN.issuperset(batches[0]):
        return batches
    reordered: list[TrlBatch] = []
    for start in range(0, len(batches), window):
        inside = batches[start : start + window]
        by_row = [name for name, value in inside[0].items() if isinstance(value, Tensor) and value.dim() > 0]
        joined = {name: torch.cat([batch[name] for batch in inside]) for name in by_row}
        rows = order(joined)
        size = inside[0]["completion_mask"].shape[0]
        for batch, own in zip(inside, rows.split(size), strict=True):
            reordered.append(batch | {name: values[own] for name, values in joined.items()})
    return reordered


def only_states(model: PreTrainedModel, places: Tensor) -> RemovableHandle:
    """Open a context in which the backbone of `model` returns (1, S, hidden) states, those of `places` (S,).

    Without Triton, TRL's head projects every position of the batch, including prompts and padding. model: with a head,
    not wrapped. places: indices into its flattened (B * L) input.
    """

    def pick(_module: nn.Module, _inputs: tuple[object, ...], output: BaseModelOutput) -> BaseModelOutput:
        states = output.last_hidden_state
        assert states is not None
        output.last_hidden_state = states.reshape(-1, states.shape[-1]).index_select(0, places).unsqueeze(0)
        return output

    return model.base_model.register_forward_hook(pick)


def switch_off_dropout(model: nn.Module) -> None:
    """Set every dropout probability of `model` to 0."""
    for module, name in list(dropout_attributes(model)):
        setattr(module, name, 0.0)


def drops_in_training(model: nn.Module) -> bool:
    """Return whether a training pass drops anything at random."""
    return any(getattr(module, name) > 0 for module, name in dropout_attributes(model))


@contextlib.contextmanager
def in_evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Put all modules of `model` into evaluation mode in this context; restore each mode afterwards."""
    in_training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in in_training:
            module.training = True
