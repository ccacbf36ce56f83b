"""Compute log-probabilities and entropies of completions in one forward pass, packed or with the padding cut off.

Both use TRL's own forward, and give its head only the states that predict a completion token.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel
from trl.trainer.utils import FusedCausalLMOutput

from rlhf_cli.packing.one_pass_head import one_pass_head
from rlhf_cli.packing.packed_rows import packed_rows
from rlhf_cli.packing.row_attention import model_inputs
from rlhf_cli.packing.scored_states import only_states
from rlhf_cli.trainers.token_slots import count
from rlhf_cli.trainers.trim import used_columns

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
        with one_pass_head(has_entropy=has_entropy), only_states(self.inner, places), self.autocast():
            output = self.model(**inputs, shift_labels=labels.unsqueeze(0), fused_lm_head=True)

        def in_rows(values: Tensor | None) -> Tensor:
            assert values is not None
            return values.new_zeros(is_token.shape).masked_scatter(is_token, values[0])

        return in_rows(output.log_probs), in_rows(output.entropy) if has_entropy else None
