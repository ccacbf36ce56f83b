"""A TRL trainer that generates, without most of its padding: rows sorted by length, micro-batches cut to size."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rlhf_cli.tables.policy_losses import POLICY_LOSSES
from rlhf_cli.trainers.trim import (
    Chunk,
    MicroBatch,
    chunks,
    has_relative_positions,
    in_chunks,
    sorted_in_windows,
    trimmed,
)

_SORTABLE = ("row", "max_length", "window")
"""What may normalise a clipped loss; where the micro-batch does, which rows share one matters."""


class LessPadding:
    """Mixed into GRPOTrainer. No number changes but by rounding; which rows share a micro-batch may."""

    _latest_logps: Tensor
    """(B, T): of the last forward pass, by whichever model."""

    def _prepare_inputs(self, generation_batch: Any) -> MicroBatch:
        before = self._trl._buffered_inputs
        inputs: MicroBatch = super()._prepare_inputs(generation_batch)  # type: ignore[misc]
        trainer = self._trl
        if self._trl.model.training and trainer._buffered_inputs is not before:
            steps, accumulation = trainer.args.steps_per_generation, trainer.args.gradient_accumulation_steps
            window = min(accumulation, steps)
            batches = trainer._buffered_inputs
            if self._may_sort and max(accumulation, steps) % window == 0:  # else a window holds parts of two rounds
                batches = sorted_in_windows(batches, window)
            trainer._buffered_inputs = [trimmed(batch, may_move=self._may_move) for batch in batches]
            inputs = trainer._buffered_inputs[trainer._step % steps]
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
        compute = super()._get_per_token_logps_and_entropies  # type: ignore[misc]

        def run(chunk: Chunk) -> tuple[Tensor, Tensor | None]:
            ids, mask = input_ids[chunk.rows][:, chunk.columns], attention_mask[chunk.rows][:, chunk.columns]
            found: tuple[Tensor, Tensor | None, Any] = compute(
                model, ids, mask, chunk.num_completion, compute_entropy=compute_entropy
            )
            return found[0], found[1]

        if torch.is_grad_enabled() or any(value is not None and value is not False for value in others.values()):
            logps, entropies, aux_loss = compute(
                model, input_ids, attention_mask, logits_to_keep, batch_size, compute_entropy, **others
            )
        else:
            size = batch_size or len(input_ids)
            parts = chunks(attention_mask, logits_to_keep, size, may_move=self._may_move)
            logps, entropies = in_chunks(run, parts, (len(input_ids), logits_to_keep))
            aux_loss = None
        self._latest_logps = logps.detach()
        return logps, entropies, aux_loss

    @property
    def _may_sort(self) -> bool:
        """Nothing in the loss is a mean or a quantile over one micro-batch."""
        trainer = self._trl
        is_by_company = trainer._entropy_bonus_enabled or trainer.top_entropy_quantile < 1.0 or trainer.aux_loss_enabled
        row = POLICY_LOSSES[trainer.loss_type]
        return row.is_clipped_ppo and row.normaliser in _SORTABLE and not is_by_company

    @property
    def _may_move(self) -> bool:
        return has_relative_positions(self._trl.model.config)

    @property
    def _trl(self) -> Any:
        """This object as the TRL trainer it is mixed into."""
        return self
