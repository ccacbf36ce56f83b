"""Generate without most of the padding: rows sorted by length, micro-batches cut to size."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rlhf_cli.tables.policy_losses import POLICY_LOSSES
from rlhf_cli.trainers.trim import (
    Chunk,
    chunks,
    has_relative_positions,
    in_chunks,
    sorted_in_windows,
    trimmed,
)
from rlhf_cli.trainers.trl_protocol import TrlBatch, TrlTrainer

_SORTABLE = ("row", "max_length", "window")
"""What may normalise a clipped loss; where the micro-batch does, which rows share one matters."""


class LessPadding(TrlTrainer):
    """Mixed into GRPOTrainer, it takes padding away. No number changes but by rounding; which rows share a micro-batch
    may.
    """

    _latest_logps: Tensor
    """(B, T): of the last forward pass, by whichever model."""

    def _prepare_inputs(self, generation_batch: Any) -> TrlBatch:
        before = self._buffered_inputs
        inputs = super()._prepare_inputs(generation_batch)
        batches = self._buffered_inputs
        if self.model.training and batches is not None and batches is not before:
            steps, accumulation = self.args.steps_per_generation, self.args.gradient_accumulation_steps
            window = min(accumulation, steps)
            if self._may_sort and max(accumulation, steps) % window == 0:  # else a window holds parts of two rounds
                batches = sorted_in_windows(batches, window)
            self._buffered_inputs = [trimmed(batch, may_move=self._may_move) for batch in batches]
            inputs = self._buffered_inputs[self._step % steps]
        return inputs

    def _get_per_token_logps_and_entropies(
        self,
        model: Any,
        input_ids: Tensor,
        attention_mask: Tensor,
        logits_to_keep: int,
        batch_size: int | None = None,
        compute_entropy: bool = False,
        **others: Any,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        compute = super()._get_per_token_logps_and_entropies

        def run(chunk: Chunk) -> tuple[Tensor, Tensor | None]:
            ids, mask = input_ids[chunk.rows][:, chunk.columns], attention_mask[chunk.rows][:, chunk.columns]
            logps, entropies, _ = compute(model, ids, mask, chunk.num_completion, compute_entropy=compute_entropy)
            return logps, entropies

        if torch.is_grad_enabled() or any(value is not None and value is not False for value in others.values()):
            logps, entropies, aux_loss = compute(
                model, input_ids, attention_mask, logits_to_keep, batch_size, compute_entropy, **others
            )
        else:
            size = batch_size or len(input_ids)
            parts = chunks(attention_mask, logits_to_keep, size, may_move=self._may_move)
            whole, entropies = in_chunks(run, parts, (len(input_ids), logits_to_keep))
            assert whole is not None
            logps = whole
            aux_loss = None
        self._latest_logps = logps.detach()
        return logps, entropies, aux_loss

    @property
    def _may_sort(self) -> bool:
        """Return whether nothing in the loss is a mean or a quantile over one micro-batch."""
        is_by_company = self._entropy_bonus_enabled or self.top_entropy_quantile < 1.0 or self.aux_loss_enabled
        row = POLICY_LOSSES[self.loss_type]
        return row.is_clipped_ppo and row.normaliser in _SORTABLE and not is_by_company

    @property
    def _may_move(self) -> bool:
        """Return whether a row may be moved to the left without another result."""
        return has_relative_positions(self.model.config)
