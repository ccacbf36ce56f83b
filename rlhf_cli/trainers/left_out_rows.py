"""Remove left-out rows (truncation=exclude, no score) from the divisor of the loss, too.

TRL divides by all rows, or by all micro-batches. A row with a zeroed mask adds 0 to the sum but still counts in the
divisor, so every step shrinks by the share of left-out rows. docs/ppo.md derives the correct divisor of each loss. Let
a round of all ranks have N rows, or M micro-batches, of which n or m are not left out. Each loss is linear in advantage
and KL coefficient together, so multiplying both by N/n (M/m) gives the mean over the rows that count. The share is that
of the whole round, not of the optimizer step. So every row of a round has the same weight, whichever step it was
shuffled into, and however the rows are split into micro-batches and processes; TRL's token-normalised losses do the
same.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from rlhf_cli.tables.trl_trainers import POLICY_LOSSES, Normaliser
from rlhf_cli.trainers.trl_protocol import TrlBatch, TrlTrainer

KEPT_ROWS, KEPT_BATCHES = "kept_rows", "kept_batches"
"""Keys of a micro-batch: the shares of the round's rows, and of its micro-batches, that are not left out."""

_ROW_METRICS = ("clip_ratio/low_mean", "clip_ratio/high_mean", "clip_ratio/region_mean", "cispo_clip_ratio")


class WithoutLeftOut(TrlTrainer):
    """For a TRL trainer that generates: divide the loss by the rows that count.

    `loss_divisor` is the divisor of the trainer's loss, None if it follows from its `loss_type`.
    """

    loss_divisor: Normaliser | None

    def _prepare_inputs(self, generation_batch: Any) -> TrlBatch:
        before = self._buffered_inputs
        inputs = super()._prepare_inputs(generation_batch)
        if not self.model.training:
            return inputs | self._kept([inputs])
        batches = self._buffered_inputs
        assert batches is not None
        if batches is not before:
            kept = self._kept(batches)
            batches = self._buffered_inputs = [batch | kept for batch in batches]
        return batches[self._step % self.args.steps_per_generation]

    def _kept(self, batches: list[TrlBatch]) -> dict[str, float]:
        """Return the shares of a round over all ranks; 1 if all rows are left out."""
        rows = [batch["completion_mask"].any(dim=1) for batch in batches]
        kept_batches = torch.stack([of_batch.any() for of_batch in rows])
        kept_rows = torch.cat(rows)
        sums = [kept_rows.sum(), kept_rows.new_ones(kept_rows.shape).sum(), kept_batches.sum()]
        counted = torch.stack([*sums, torch.full_like(sums[0], len(batches))]).double()
        n, num_rows, m, num_batches = self.accelerator.reduce(counted, reduction="sum").tolist()
        return {KEPT_ROWS: n / num_rows if n else 1.0, KEPT_BATCHES: m / num_batches if m else 1.0}

    def _compute_loss(self, model: Any, inputs: TrlBatch) -> Tensor:
        if inputs.get(KEPT_ROWS, 1.0) == 1.0:
            return super()._compute_loss(model, inputs)
        share = self.kept_share(inputs)
        with self._beta(self.beta / share), self._entropy_share(inputs[KEPT_BATCHES]):
            loss = super()._compute_loss(model, inputs | {"advantages": inputs["advantages"] / share})
        self._count_metrics_over_kept(inputs)
        return loss

    def kept_share(self, inputs: TrlBatch) -> float:
        """Return the share of the loss's divisor that is not left out; 1 if it divides by tokens of the round."""
        divisor = self.loss_divisor or POLICY_LOSSES[self.loss_type].normaliser
        if divisor == "window":
            return 1.0
        share: float = inputs.get(KEPT_BATCHES if divisor == "micro-batch" else KEPT_ROWS, 1.0)
        return share

    @contextlib.contextmanager
    def _beta(self, value: float) -> Iterator[None]:
        """Temporarily set TRL's coefficient of the KL in the loss."""
        before, self.beta = self.beta, value
        try:
            yield
        finally:
            self.beta = before

    @contextlib.contextmanager
    def _entropy_share(self, share: float) -> Iterator[None]:
        """Temporarily set TRL's entropy coefficient: the bonus is a mean over micro-batches, including empty ones.

        An adaptive coefficient changes within the loss, and is left to TRL.
        """
        if share == 1.0 or not getattr(self, "_entropy_bonus_enabled", False) or self.use_adaptive_entropy:
            yield
            return
        before, self.entropy_coef = self.entropy_coef, self.entropy_coef / share
        logged = self._metrics["train" if self.model.training else "eval"]["entropy_coef"]
        count = len(logged)
        try:
            yield
        finally:
            self.entropy_coef = before
            logged[count:] = [before] * (len(logged) - count)

    def _count_metrics_over_kept(self, inputs: TrlBatch) -> None:
        """Correct TRL's metrics that are means over a micro-batch's rows to means over the rows that count."""
        kept = inputs["completion_mask"].any(dim=1)
        counts = torch.stack([kept.sum(), kept.new_ones(kept.shape).sum()]).double()
        n, num_rows = self.accelerator.reduce(counts, reduction="sum").tolist()
        metrics = self._metrics["train" if self.model.training else "eval"]

        def over_kept(name: str, of_left_out: float) -> None:
            if metrics.get(name):
                total = metrics[name][-1] * num_rows - of_left_out * (num_rows - n)
                metrics[name][-1] = total / n if n else torch.nan

        over_kept("vespo/phi_seq_mean", 1.0)  # left-out rows have a ratio of 1
        if not self._counts_clipped_rows:
            return
        for name in _ROW_METRICS:
            over_kept(name, 0.0)
        # Each row is either clipped or not, so the minimum is 1 only if all are.
        for extreme, mean in (("low_min", "low_mean"), ("high_max", "high_mean")):
            if metrics.get(f"clip_ratio/{mean}"):
                share = metrics[f"clip_ratio/{mean}"][-1]
                is_all = share > 1 - 0.5 / max(num_rows, 1)
                metrics[f"clip_ratio/{extreme}"][-1] = float(is_all if extreme == "low_min" else share > 0)

    @property
    def _counts_clipped_rows(self) -> bool:
        """Return whether TRL logs the share of clipped rows instead of clipped tokens."""
        if not hasattr(self, "loss_type"):  # RLOO
            return True
        return self.loss_divisor is None and self.importance_sampling_level == "sequence"
