"""Take rows that are left out (truncation=exclude, no score) out of what a loss is divided by, too.

TRL divides by all rows, or by all micro-batches: with a zeroed mask a row adds nothing to the sum and still counts
below it, and every step shrinks by the share that was left out. docs/ppo.md derives what each loss is to be divided by.

Let N rows, or M micro-batches, be in a round of all ranks, n or m of them not left out. Each loss is linear in
advantage and KL coefficient together, so both times N/n (M/m) make the mean one over what counts. The share is that of
the whole round, not of the optimizer step: every row of a round weighs the same, whichever step it was shuffled into,
and however the rows are split into micro-batches and among processes; TRL's token-normalised losses do so, too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from rlhf_cli.tables.policy_losses import POLICY_LOSSES, Normaliser
from rlhf_cli.trainers.trl_protocol import TrlBatch, TrlTrainer

KEPT_ROWS, KEPT_BATCHES = "kept_rows", "kept_batches"
"""Keys of a micro-batch: the share of the round's rows, and of its micro-batches, that hold anything to learn from."""

_ROW_METRICS = ("clip_ratio/low_mean", "clip_ratio/high_mean", "clip_ratio/region_mean", "cispo_clip_ratio")


class WithoutLeftOut(TrlTrainer):
    """Mixed into a TRL trainer that generates, it divides the loss by what counts.

    `loss_divisor` is what the trainer's loss divides by, None where that follows from its `loss_type`.
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
        """Return the shares of a round, over all ranks; 1 where nothing counts at all, and nothing is divided."""
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
        """Return the share of what the loss divides by that is not left out; 1 where it divides by tokens of the
        round.
        """
        divisor = self.loss_divisor or POLICY_LOSSES[self.loss_type].normaliser
        if divisor == "window":
            return 1.0
        share: float = inputs.get(KEPT_BATCHES if divisor == "micro-batch" else KEPT_ROWS, 1.0)
        return share

    @contextlib.contextmanager
    def _beta(self, value: float) -> Iterator[None]:
        """Set TRL's coefficient of the KL in the loss for a while."""
        before, self.beta = self.beta, value
        try:
            yield
        finally:
            self.beta = before

    @contextlib.contextmanager
    def _entropy_share(self, share: float) -> Iterator[None]:
        """Set TRL's coefficient of the entropy for a while: the bonus is a mean over micro-batches, empty ones too.

        An adaptive coefficient moves within the loss, and stays TRL's.
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
        """Make those of TRL's metrics that are means over a micro-batch's rows means over the rows that count."""
        kept = inputs["completion_mask"].any(dim=1)
        counts = torch.stack([kept.sum(), kept.new_ones(kept.shape).sum()]).double()
        n, num_rows = self.accelerator.reduce(counts, reduction="sum").tolist()
        metrics = self._metrics["train" if self.model.training else "eval"]

        def over_kept(name: str, of_left_out: float) -> None:
            if metrics.get(name):
                total = metrics[name][-1] * num_rows - of_left_out * (num_rows - n)
                metrics[name][-1] = total / n if n else torch.nan

        over_kept("vespo/phi_seq_mean", 1.0)  # of a ratio of 1
        if not self._counts_clipped_rows:
            return
        for name in _ROW_METRICS:
            over_kept(name, 0.0)
        # A row is clipped or not, so the least is 1 only where all are.
        for extreme, mean in (("low_min", "low_mean"), ("high_max", "high_mean")):
            if metrics.get(f"clip_ratio/{mean}"):
                share = metrics[f"clip_ratio/{mean}"][-1]
                is_all = share > 1 - 0.5 / max(num_rows, 1)
                metrics[f"clip_ratio/{extreme}"][-1] = float(is_all if extreme == "low_min" else share > 0)

    @property
    def _counts_clipped_rows(self) -> bool:
        """Return whether TRL logs the share of clipped rows, not of clipped tokens."""
        if not hasattr(self, "loss_type"):  # RLOO
            return True
        return self.loss_divisor is None and self.importance_sampling_level == "sequence"
