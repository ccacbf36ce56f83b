"""Compute log-probabilities in one trimmed forward pass without dropout.

Removing all-padding columns from a micro-batch changes numbers only by rounding: positions are relative, and the losses
count masked tokens only. Sorting rows by length inside one accumulation window creates more such columns; it is exact
if the loss is normalised by row or by window. Rows are never moved across optimizer steps.

PPO compares the policy in training with the policy of the rollout, token by token. With dropout, both are randomly
thinned models, whose ratio is not 1 even without an update. So TRL's PPOTrainer (until 1.12), verl and others train
without dropout.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput
from trl.trainer.utils import FusedCausalLMOutput

from rlhf_cli.models.live_generation import dropout_attributes
from rlhf_cli.trainers.step_profile import count

if TYPE_CHECKING:
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

    `may_move`: all-padding columns on the left may be removed as well.
    """
    num_prompt = mask.shape[1] - num_completion
    used = mask.any(dim=0).tolist()  # a GPU is waited for once
    if not any(used):
        return slice(num_prompt - 1 if may_move else 0, num_prompt + 1)
    first = min(used.index(True), num_prompt - 1) if may_move else 0
    return slice(first, max(len(used) - used[::-1].index(True), num_prompt + 1))


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
        values = batch.get(name)
        if values is not None and values.dim() == 2 and values.shape[1] == width:
            cut[name] = values[:, :length]
    return cut


def with_two_columns(batch: TrlBatch) -> TrlBatch:
    """Return the micro-batch with a second column, of padding, if its completions have only one.

    TRL takes numbers of shape (B, 1) for one per row and averages them in its metrics without the mask.
    """
    if batch["completion_mask"].shape[1] != 1 or not _KNOWN.issuperset(batch):
        return batch
    padded = [name for name in _COMPLETION if name != "importance_sampling_ratio"]  # may be one number per row
    twice = {
        name: nn.functional.pad(batch[name], (0, 1)) for name in padded if getattr(batch.get(name), "ndim", 0) == 2
    }
    return batch | twice


def by_length(mask: Tensor) -> Tensor:
    """Return (B,), an order of rows with the longest first; mask: (B, T)."""
    return mask.sum(dim=1).argsort(descending=True, stable=True)


def reordered_in_windows(batches: list[TrlBatch], window: int, order: Callable[[TrlBatch], Tensor]) -> list[TrlBatch]:
    """Return the same rows, reordered by `order` within every `window` consecutive micro-batches.

    Such a window is one accumulation window.
    """
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


Scored = tuple[Tensor, Tensor | None]
"""(B, C) log-probabilities, and entropies if requested; 0 where there is no token."""


@dataclass(frozen=True)
class Forward:
    """The parts of a trainer that a pass needs.

    `model` is called as it is, wrapped; `inner` is the language model in it. `may_move`: rows may be moved to the left.
    """

    model: Callable[..., FusedCausalLMOutput]
    inner: PreTrainedModel
    autocast: Callable[[], AbstractContextManager[None]]
    may_move: bool

    def packed(self, ids: Tensor, mask: Tensor, num_completion: int, *, has_entropy: bool) -> Scored:
        """Score rows (B, P + C) packed into one flat row, or as `trimmed` if they cannot be packed."""
        from rlhf_cli.models.packing.packed_rows import packed_rows
        from rlhf_cli.models.packing.row_attention import model_inputs

        rows = packed_rows(ids, mask, num_completion)
        if rows is None:
            return self.trimmed(ids, mask, num_completion, has_entropy=has_entropy)
        count(rows.input_ids.shape[1], mask.sum())
        is_token = mask[:, -num_completion:].bool()
        labels = ids[:, -num_completion:][is_token]
        return self._scored(model_inputs(rows), rows.states_before(), labels, is_token, has_entropy)

    def trimmed(self, ids: Tensor, mask: Tensor, num_completion: int, *, has_entropy: bool) -> Scored:
        """Score rows (B, P + C) without the columns that are padding in all rows."""
        num_prompt = ids.shape[1] - num_completion
        columns = used_columns(mask, num_completion, may_move=self.may_move)
        ids_cut, mask_cut = ids[:, columns], mask[:, columns]
        count(ids_cut.numel(), mask.sum())
        is_token = mask[:, num_prompt:].bool()
        places = torch.arange(ids_cut.numel(), device=ids.device).view_as(ids_cut)
        before = places[:, num_prompt - columns.start - 1 : -1][is_token[:, : columns.stop - num_prompt]]
        labels = ids[:, num_prompt:][is_token]
        inputs = {"input_ids": ids_cut, "attention_mask": mask_cut}
        return self._scored(inputs, before, labels, is_token, has_entropy)

    def _scored(
        self, inputs: Mapping[str, object], places: Tensor, labels: Tensor, is_token: Tensor, has_entropy: bool
    ) -> Scored:
        with only_states(self.inner, places), self.autocast():
            output = self.model(**inputs, shift_labels=labels.unsqueeze(0), fused_lm_head=True)

        def in_rows(values: Tensor | None) -> Tensor:
            assert values is not None
            return values.new_zeros(is_token.shape).masked_scatter(is_token, values[0])

        return in_rows(output.log_probs), in_rows(output.entropy) if has_entropy else None


@contextlib.contextmanager
def only_states(model: PreTrainedModel, places: Tensor) -> Iterator[None]:
    """Make the backbone of `model` return (1, S, hidden) states in this context, those of `places` (S,).

    Without Triton, TRL's head projects every position of the batch, including prompts and padding. model: with a head,
    not wrapped. places: indices into its flattened (B * L) input.
    """

    def pick(_module: nn.Module, _inputs: tuple[object, ...], output: BaseModelOutput) -> BaseModelOutput:
        states = output.last_hidden_state
        assert states is not None
        output.last_hidden_state = states.reshape(-1, states.shape[-1]).index_select(0, places).unsqueeze(0)
        return output

    hook = model.base_model.register_forward_hook(pick)
    try:
        yield
    finally:
        hook.remove()


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
