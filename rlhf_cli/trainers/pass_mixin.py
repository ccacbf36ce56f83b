"""Send rows through a model packed, where a trial says the result is right.

Numbers change only by rounding, and rows stay in their optimizer step. Rows may move to another micro-batch if the loss
does not depend on it. Rows whose advantages are all 0 are computed without a gradient if theirs is 0.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, cast

import torch
from accelerate import Accelerator
from peft import PeftModel
from torch import Tensor, nn
from transformers import PreTrainedModel

from rlhf_cli.errors import in_a_line
from rlhf_cli.models.packing.packed_rows import rows_by_prompt
from rlhf_cli.models.packing.row_attention import has_relative_positions, why_not_packed
from rlhf_cli.tables.passes import ALL_ROWS_AT_ONCE, READS_IMAGES, Passes, PassSetting, refused_packing
from rlhf_cli.tables.trl_trainers import POLICY_LOSSES
from rlhf_cli.trainers import forward_pass
from rlhf_cli.trainers.extensions import ExtendedTrainer
from rlhf_cli.trainers.step_profile import count, uncounted
from rlhf_cli.trainers.trl_protocol import TrlBatch, TrlTrainer

Scored = tuple[Tensor, Tensor | None]
"""(B, C) log-probabilities, and entropies if requested; 0 where there is no token."""


def chosen_passes(trainer: TrlTrainer, setting: PassSetting, critic_body: nn.Module | None = None) -> Passes:
    """Return the fastest way that all of a trainer's models support, or the requested one.

    Raise ModelError if `packed` is requested and a model does not support it.
    """
    if setting in ("trimmed", "plain"):
        return Passes(setting, "as asked")
    if trainer.aux_loss_enabled:
        found = Passes("plain", "the loss of the experts' balance counts padding")
    elif hasattr(trainer.accelerator.unwrap_model(trainer.model).config, "vision_config"):
        found = Passes("plain", READS_IMAGES)
    else:
        why = None
        for model, prefix in ((trainer.model, ""), (trainer.ref_model, ""), (critic_body, "the critic: ")):
            if why is None and model is not None:
                inner = trainer.accelerator.unwrap_model(model)
                why = why_not_packed(cast(PreTrainedModel, inner))
                if why is None and model is not trainer.ref_model and forward_pass.drops_in_training(inner):
                    why = "it drops at random in training, each row for itself"
                why = None if why is None else prefix + why
        if why is None and trainer.args.torch_compile:
            why = "it is compiled for rows of one shape"
        if why is None and setting == "auto" and trainer.accelerator.device.type != "cpu":
            # On a GPU without a kernel for all rows at once, every layer calls its attention once per row: a step of 64
            # short rows took about three times as long as padded on an H100. A CPU gains from packing either way.
            slow = why_no_varlen_for(trainer.accelerator.unwrap_model(trainer.model), trainer.accelerator)
            why = None if slow is None else f"packed, each row would attend by itself: {slow}"
        found = Passes("packed") if why is None else Passes("trimmed", why)
    if setting == "packed" and found.mode != "packed":
        raise refused_packing(found, where="trainer.passes")
    return found


_ROWS = 3
_TOLERANCE, _TOLERANCE_IN_HALF = 1e-3, 0.05
"""Allowed mean difference between packed and padded numbers. A model that does not pass arguments on to its attention
differs by far more; single tokens differ by a tenth in bfloat16.
"""
_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""The dtype of attention under accelerate's mixed precision."""


def tried_rows(mask: Tensor, num_completion: int) -> Tensor:
    """Return (3,), the first rows of (B, P + C) with a completion, repeated if fewer: one alone has no neighbour."""
    is_empty = ~mask[:, -num_completion:].bool().any(dim=1)
    order = is_empty.int().argsort(stable=True)
    return order[torch.arange(_ROWS, device=mask.device) % len(order)]


def why_no_varlen_for(model: PreTrainedModel | PeftModel, accelerator: Accelerator) -> str | None:
    """Return why a model's packed rows cannot attend in one kernel call, by its configuration; None if they can."""
    if accelerator.device.type == "cpu":
        return "the device is cpu"
    from rlhf_cli.models.packing.row_attention import heads_of_model, why_no_varlen

    dtype = _AUTOCAST.get(accelerator.mixed_precision, model.dtype)
    return why_no_varlen(heads_of_model(model, accelerator.device, dtype))


class PassMixin(ExtendedTrainer):
    """For a TRL trainer that generates: compute the results of `_get_per_token_logps_and_entropies`."""

    _latest_logps: Tensor
    """(B, T): from the last forward pass of any model."""
    _has_tried: bool = False
    _learned: Tensor | None = None
    """(B,) bool: the rows of this micro-batch that have a gradient; None for all."""

    @functools.cached_property
    def passes(self) -> Passes:
        """Return how rows go through the models. Raise ModelError if a model does not support the requested way."""
        assert self.extensions.rewards is not None
        critic = getattr(self, "critic", None)  # PPO's, which reads the same rows
        return chosen_passes(self, self.extensions.rewards.passes, None if critic is None else critic.body())

    @property
    def row_attention(self) -> str | None:
        """Return how packed rows attend, None if rows are not packed."""
        if self.passes.mode != "packed":
            return None
        why = why_no_varlen_for(self.accelerator.unwrap_model(self.model), self.accelerator)
        return ALL_ROWS_AT_ONCE if why is None else f"one row at a time (SDPA): {why}"

    def slow_paths(self) -> dict[str, str]:
        found, passes, attention = super().slow_paths(), self.passes, self.row_attention
        if passes.why is not None:
            found["packing of rows"] = f"{passes.why}; rows are {passes.mode}"
        elif attention != ALL_ROWS_AT_ONCE and self.accelerator.device.type != "cpu":
            found["one attention kernel for all rows"] = str(attention)
        for component in self.extensions.rewards.stack.components if self.extensions.rewards else ():
            if (why := getattr(component.score, "why_not_packed", None)) is not None:  # a reward model's
                found[f"packing of texts for rewards.{component.name}"] = why
        return found

    # --- which rows go together ---

    def _prepare_inputs(self, generation_batch: Any) -> TrlBatch:
        before = self._buffered_inputs
        inputs = super()._prepare_inputs(generation_batch)
        batches = self._buffered_inputs
        if not self.model.training:
            return forward_pass.with_two_columns(inputs)
        if batches is None or batches is before:
            return inputs
        steps, accumulation = self.args.steps_per_generation, self.args.gradient_accumulation_steps
        if self.passes.mode != "plain":
            window, loss = min(accumulation, steps), getattr(self, "loss_type", None)  # RLOO has one: the mean of rows
            has_means = self._mixes_rows or (loss is not None and POLICY_LOSSES[loss] == "micro-batch")
            # A window may hold parts of two rounds; a mean or quantile over a micro-batch depends on its rows.
            if max(accumulation, steps) % window == 0 and not has_means:
                batches = forward_pass.reordered_in_windows(batches, window, self._order)
            may_move = has_relative_positions(self.model.config)
            batches = [forward_pass.trimmed(batch, may_move=may_move) for batch in batches]
        self._buffered_inputs = list(map(forward_pass.with_two_columns, batches))
        return self._buffered_inputs[self._step % steps]

    def _order(self, rows: TrlBatch) -> Tensor:
        """Return (B,), the order in which the rows of a window go into its micro-batches."""
        if self.passes.mode != "packed":
            return forward_pass.by_length(rows["completion_mask"])
        return rows_by_prompt(rows["prompt_ids"], rows["prompt_mask"])

    @property
    def _mixes_rows(self) -> bool:
        """Return whether a row's part of the loss depends on the others of its micro-batch."""
        has_bonus = getattr(self, "_entropy_bonus_enabled", False)
        return has_bonus or getattr(self, "top_entropy_quantile", 1.0) < 1.0 or self.aux_loss_enabled

    # --- which rows have a gradient ---

    def _compute_loss(self, model: Any, inputs: TrlBatch) -> Tensor:
        if not self.model.training or self.passes.mode == "plain":
            return super()._compute_loss(model, inputs)
        advantages = inputs["advantages"]
        is_zero = advantages == 0 if advantages.dim() == 1 else (advantages == 0).all(dim=1)
        counts = inputs["completion_mask"].any(dim=1)  # left-out rows count nowhere
        own = torch.stack([(is_zero & counts).sum(), counts.sum(), is_zero.sum()])
        by_rank = self.accelerator.gather(own.unsqueeze(0)).tolist()
        num_zero, num_rows, _ = map(sum, zip(*by_rank, strict=True))
        self._metrics["train"]["passes/zero_advantage_share"].append(num_zero / num_rows if num_rows else torch.nan)
        self._learned = self._with_gradient(is_zero, by_rank[self.accelerator.process_index][2], inputs)
        try:
            return super()._compute_loss(model, inputs)
        finally:
            self._learned = None

    def _with_gradient(self, is_zero: Tensor, num_zero: int, inputs: TrlBatch) -> Tensor | None:
        """Return (B,) bool, at least one True so that every rank has a backward pass; None for all rows.

        In every loss of TRL, an advantage of 0 (`num_zero` rows, True in `is_zero`) makes a row's gradient 0, unless a
        KL penalty or an entropy bonus applies. With sharded weights, all ranks must call the model equally often.
        """
        is_sharded = self.is_deepspeed_enabled or self.is_fsdp_enabled
        has_penalty = self.beta != 0 and "ref_per_token_logps" in inputs
        if is_sharded or has_penalty or self._mixes_rows or forward_pass.drops_in_training(self.model):
            return None
        if num_zero == 0 or len(is_zero) == 1:
            return None
        learned = ~is_zero
        if num_zero == len(is_zero):
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
            count(input_ids.numel(), attention_mask.sum())
            logps, entropies, aux_loss = stock(
                model, input_ids, attention_mask, logits_to_keep, batch_size, compute_entropy, **others
            )
            self._latest_logps = logps.detach()
            return logps, entropies, aux_loss
        if self.passes.mode == "packed" and not self._has_tried:
            self._has_tried = True
            few = tried_rows(attention_mask, logits_to_keep)
            rows = input_ids[few], attention_mask[few], logits_to_keep
            is_token = rows[1][:, -logits_to_keep:].bool()
            self._try(
                *(model, "its log-probabilities"),
                lambda: stock(model, *rows)[0][is_token],
                lambda: self._scored(model, *rows)[0][is_token],
            )

        def run(rows: Tensor) -> Scored:
            return self._scored(model, input_ids[rows], attention_mask[rows], logits_to_keep, compute_entropy)

        if torch.is_grad_enabled():
            logps, entropies = self._with_and_without_gradient(model, run, len(input_ids))
        else:
            if self.passes.mode == "packed":
                order = rows_by_prompt(input_ids[:, :-logits_to_keep], attention_mask[:, :-logits_to_keep])
            else:
                order = forward_pass.by_length(attention_mask)
            parts = order.split(batch_size or len(order))
            logps, entropies = _put_together([(part, run(part)) for part in parts])
        self._latest_logps = logps.detach()
        return logps, entropies, None

    def _with_and_without_gradient(
        self, model: torch.nn.Module, run: Callable[[Tensor], Scored], num_rows: int
    ) -> Scored:
        every = torch.arange(num_rows, device=self.accelerator.device)
        if self._learned is None:
            return run(every)
        # layers in training mode would checkpoint for a backward pass
        with forward_pass.in_evaluation_mode(model), torch.no_grad():
            others = every[~self._learned]
            without = run(others)
        learned = every[self._learned]
        return _put_together([(others, without), (learned, run(learned))])

    def _scored(
        self, model: torch.nn.Module, ids: Tensor, mask: Tensor, num_completion: int, has_entropy: bool = False
    ) -> Scored:
        """Score rows (B, P + C) without dropout in one pass, packed into one flat row or trimmed."""
        inner = self.accelerator.unwrap_model(model)
        inner = inner.get_base_model() if hasattr(inner, "get_base_model") else inner
        is_packed, may_move = self.passes.mode == "packed", has_relative_positions(self.model.config)
        inputs, places = forward_pass.model_rows(ids, mask, num_completion, is_packed=is_packed, may_move=may_move)
        is_token = mask[:, -num_completion:].bool()
        labels = ids[:, -num_completion:][is_token]
        with forward_pass.only_states(cast(PreTrainedModel, inner), places), self.accelerator.autocast():
            output = model(**inputs, shift_labels=labels.unsqueeze(0), fused_lm_head=True)

        def in_rows(values: Tensor) -> Tensor:
            return values.new_zeros(is_token.shape).masked_scatter(is_token, values[0])

        return in_rows(output.log_probs), in_rows(output.entropy) if has_entropy else None

    def _try(
        self, model: torch.nn.Module, what: str, padded: Callable[[], Tensor], packed: Callable[[], Tensor]
    ) -> None:
        """Compare packed with padded rows in one of the models; if they differ on any rank, all use trimmed rows.

        Both functions return the numbers of the same tokens; `what` names them, for example `its log-probabilities`.
        """
        wrong = "a pass raised on another rank"
        with forward_pass.in_evaluation_mode(model), torch.no_grad(), uncounted():  # a run that resumes tries again
            expected = padded()
            difference = torch.tensor(torch.inf, device=expected.device)
            try:
                difference = (expected - packed()).abs().sum() / max(expected.numel(), 1)
            except torch.OutOfMemoryError:
                raise
            except (RuntimeError, TypeError, ValueError) as error:
                wrong = f"a pass raised {in_a_line(error)}"
        farthest = self.accelerator.gather(difference.float().reshape(1)).max().item()
        is_half = self.accelerator.mixed_precision != "no" or self.accelerator.unwrap_model(model).dtype.itemsize < 4
        if farthest <= (_TOLERANCE_IN_HALF if is_half else _TOLERANCE):
            return
        wrong = wrong if farthest == torch.inf else f"{what} were {farthest:.2g} off"
        self.passes = Passes("trimmed", f"packed, {wrong}")


def _put_together(parts: list[tuple[Tensor, Scored]]) -> Scored:
    """Return (B, C), assembled from results for subsets of rows: (indices of rows, (rows, C))."""
    places = torch.cat([rows for rows, _ in parts]).argsort()
    entropies = [scored[1] for _, scored in parts if scored[1] is not None]
    logps = torch.cat([scored[0] for _, scored in parts])[places]
    return logps, torch.cat(entropies)[places] if entropies else None
