"""Send rows through a model without padding, and each prompt once; TRL pads all rows to the longest of a round.

Numbers change only by rounding, and rows stay in their optimizer step. Rows may move to another micro-batch if the loss
does not depend on it. Rows whose advantages are all 0 are computed without a gradient if theirs is 0.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor
from transformers import PreTrainedModel

from rlhf_cli.packing.packable import has_relative_positions
from rlhf_cli.packing.packed_rows import rows_by_prompt
from rlhf_cli.tables.pass_modes import Passes, RowAttention
from rlhf_cli.tables.policy_losses import POLICY_LOSSES
from rlhf_cli.trainers.additions import Additions
from rlhf_cli.trainers.dropout import drops, in_evaluation_mode
from rlhf_cli.trainers.passes.chosen_passes import chosen_passes
from rlhf_cli.trainers.passes.forward_pass import Forward, Scored
from rlhf_cli.trainers.passes.pass_trial import PassTrial, tried_rows, why_attention_a_row_each
from rlhf_cli.trainers.trim import by_length, reordered_in_windows, trimmed
from rlhf_cli.trainers.trl_protocol import TrlBatch, TrlTrainer

_log = logging.getLogger("rlhf")


class RowPasses(TrlTrainer):
    """For a TRL trainer that generates: compute the results of `_get_per_token_logps_and_entropies`."""

    additions: Additions
    _latest_logps: Tensor
    """(B, T): from the last forward pass of any model."""
    _has_tried: bool = False
    _learned: Tensor | None = None
    """(B,) bool: the rows of this micro-batch that have a gradient; None for all."""

    @functools.cached_property
    def passes(self) -> Passes:
        """Return how rows go through the models. Raise ModelError if a model does not support the requested way."""
        assert self.additions.rewards is not None
        return chosen_passes(self, self.additions.rewards.passes, self._critic_body())

    def _critic_body(self) -> torch.nn.Module | None:
        """Return the part of a critic that reads the same rows; None without a critic."""
        return None

    @property
    def row_attention(self) -> RowAttention | None:
        """Return how packed rows attend, None if rows are not packed."""
        if self.passes.mode != "packed":
            return None
        model = self.accelerator.unwrap_model(self.model)
        return RowAttention(why_attention_a_row_each(model, self.accelerator))

    # --- which rows go together ---

    def _prepare_inputs(self, generation_batch: Any) -> TrlBatch:
        before = self._buffered_inputs
        inputs = super()._prepare_inputs(generation_batch)
        batches = self._buffered_inputs
        is_new = self.model.training and batches is not None and batches is not before
        if is_new and self.passes.mode != "plain":
            assert batches is not None
            steps, accumulation = self.args.steps_per_generation, self.args.gradient_accumulation_steps
            window = min(accumulation, steps)
            if self._may_reorder and max(accumulation, steps) % window == 0:  # else a window holds parts of two rounds
                batches = reordered_in_windows(batches, window, self._order)
            self._buffered_inputs = [trimmed(batch, may_move=self._may_move) for batch in batches]
            inputs = self._buffered_inputs[self._step % steps]
        return inputs

    def _order(self, rows: TrlBatch) -> Tensor:
        """Return (B,), the order in which the rows of a window go into its micro-batches."""
        if self.passes.mode == "packed":
            return rows_by_prompt(rows["prompt_ids"], rows["prompt_mask"])
        return by_length(rows["completion_mask"])

    @property
    def _may_reorder(self) -> bool:
        """Return whether the loss has no mean or quantile over a single micro-batch."""
        if self._mixes_rows:
            return False
        loss = getattr(self, "loss_type", None)  # RLOO has one loss, the mean over rows
        return loss is None or POLICY_LOSSES[loss].normaliser != "micro-batch"

    @property
    def _mixes_rows(self) -> bool:
        """Return whether a row's part of the loss depends on the others of its micro-batch."""
        has_bonus = getattr(self, "_entropy_bonus_enabled", False)
        return has_bonus or getattr(self, "top_entropy_quantile", 1.0) < 1.0 or self.aux_loss_enabled

    @property
    def _may_move(self) -> bool:
        """Return whether moving a row to the left keeps its result."""
        return has_relative_positions(self.model.config)

    # --- which rows have a gradient ---

    def _compute_loss(self, model: Any, inputs: TrlBatch) -> Tensor:
        if not self.model.training or self.passes.mode == "plain":
            return super()._compute_loss(model, inputs)
        advantages = inputs["advantages"]
        is_zero = advantages == 0 if advantages.dim() == 1 else (advantages == 0).all(dim=1)
        counts = inputs["completion_mask"].any(dim=1)  # left-out rows count nowhere
        sums = torch.stack([(is_zero & counts).sum(), counts.sum()]).double()
        num_zero, num_rows = self.accelerator.reduce(sums, reduction="sum").tolist()
        self._metrics["train"]["passes/zero_advantage_share"].append(num_zero / num_rows if num_rows else torch.nan)
        self._learned = self._with_gradient(is_zero, inputs)
        try:
            return super()._compute_loss(model, inputs)
        finally:
            self._learned = None

    def _with_gradient(self, is_zero: Tensor, inputs: TrlBatch) -> Tensor | None:
        """Return (B,) bool, at least one True so that every rank has a backward pass; None for all rows.

        In every loss of TRL, an advantage of 0 makes a row's gradient 0, unless a KL penalty or an entropy bonus also
        applies. With sharded weights, all ranks must call the model equally often.
        """
        is_sharded = self.is_deepspeed_enabled or self.is_fsdp_enabled
        has_penalty = self.beta != 0 and "ref_per_token_logps" in inputs
        if is_sharded or has_penalty or self._mixes_rows or drops(self.model) or not is_zero.any():
            return None
        learned = ~is_zero
        if not learned.any():
            learned[inputs["completion_mask"].sum(dim=1).argmin()] = True
        return learned

    # --- the passes ---

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
        stock = super()._get_per_token_logps_and_entropies
        has_others = any(value is not None and value is not False for value in others.values())
        if has_others or self.passes.mode == "plain":
            logps, entropies, aux_loss = stock(
                model, input_ids, attention_mask, logits_to_keep, batch_size, compute_entropy, **others
            )
            self._latest_logps = logps.detach()
            return logps, entropies, aux_loss
        forward = self._forward(model)
        if self.passes.mode == "packed" and not self._has_tried:
            self._has_tried = True
            few = tried_rows(attention_mask, logits_to_keep)
            rows = input_ids[few], attention_mask[few], logits_to_keep
            is_token = rows[1][:, -logits_to_keep:].bool()
            self._try(
                *(model, "its log-probabilities"),
                lambda: stock(model, *rows)[0][is_token],
                lambda: forward.packed(*rows, has_entropy=False)[0][is_token],
            )

        def run(rows: Tensor) -> Scored:
            score = forward.packed if self.passes.mode == "packed" else forward.trimmed
            return score(input_ids[rows], attention_mask[rows], logits_to_keep, has_entropy=compute_entropy)

        if torch.is_grad_enabled():
            logps, entropies = self._with_and_without_gradient(model, run, len(input_ids))
        else:
            if self.passes.mode == "packed":
                order = rows_by_prompt(input_ids[:, :-logits_to_keep], attention_mask[:, :-logits_to_keep])
            else:
                order = by_length(attention_mask)
            parts = order.split(batch_size or len(order))
            logps, entropies = _put_together([(part, run(part)) for part in parts], len(order))
        self._latest_logps = logps.detach()
        return logps, entropies, None

    def _with_and_without_gradient(
        self, model: torch.nn.Module, run: Callable[[Tensor], Scored], num_rows: int
    ) -> Scored:
        every = torch.arange(num_rows, device=self.accelerator.device)
        if self._learned is None or self._learned.all():
            return run(every)
        with in_evaluation_mode(model), torch.no_grad():  # layers in training mode would checkpoint for a backward pass
            others = every[~self._learned]
            without = run(others)
        learned = every[self._learned]
        return _put_together([(others, without), (learned, run(learned))], num_rows)

    def _forward(self, model: torch.nn.Module) -> Forward:
        inner = self.accelerator.unwrap_model(model)
        inner = inner.get_base_model() if hasattr(inner, "get_base_model") else inner
        return Forward(
            model=model,
            inner=cast(PreTrainedModel, inner),
            autocast=self.accelerator.autocast,
            may_move=self._may_move,
        )

    def _try(
        self, model: torch.nn.Module, what: str, padded: Callable[[], Tensor], packed: Callable[[], Tensor]
    ) -> None:
        """Compare packed with padded rows in one of the models; if they differ, all models use trimmed rows."""
        wrong = PassTrial(model, self.accelerator, what).why_wrong(padded, packed)
        if wrong is not None:
            self.passes = Passes("trimmed", f"packed, {wrong}")
            _log.warning("rows go through the model %s (docs/passes.md)", self.passes.describe())


def _put_together(parts: list[tuple[Tensor, Scored]], num_rows: int) -> Scored:
    """Return (B, C), assembled from results for subsets of rows: (indices of rows, (rows, C))."""

    def whole(index: int) -> Tensor | None:
        found = [scored[index] for _, scored in parts]
        if found[0] is None:
            return None
        tensors = cast(list[Tensor], found)
        together = tensors[0].new_zeros((num_rows, tensors[0].shape[1]))
        for (rows, _), values in zip(parts, tensors, strict=True):
            together = together.index_copy(0, rows, values)
        return together

    logps = whole(0)
    assert logps is not None
    return logps, whole(1)
