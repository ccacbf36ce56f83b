"""Remove left-out rows (truncation=exclude, no score) from the divisor of the loss, too.

TRL divides by all rows, or by all micro-batches. A row with a zeroed mask adds 0 to the sum but still counts in the
divisor, so every step shrinks by the share of left-out rows. docs/how-to/ppo.md derives the correct divisor of each
loss. Let a round of all ranks have N rows, or M micro-batches, of which n or m are not left out. Each loss is linear in
advantage and KL coefficient together, so multiplying both by N/n (M/m) gives the mean over the rows that count. The
share is that of the whole round, not of the optimizer step. So every row of a round has the same weight, whichever step
it was shuffled into, and however the rows are split into micro-batches and processes; TRL's token-normalised losses do
the same.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from accelerate import Accelerator

from rlhf_cli.temporary_attributes import temporary_attributes
from rlhf_cli.trainers.trl_protocol import TrlBatch, TrlTrainer

KEPT_ROWS, KEPT_BATCHES = "kept_rows", "kept_batches"
"""Keys of a micro-batch: the shares of the round's rows, and of its micro-batches, that are not left out."""

_ROW_METRICS = ("clip_ratio/low_mean", "clip_ratio/high_mean", "clip_ratio/region_mean", "cispo_clip_ratio")


def kept_shares(batches: list[TrlBatch], accelerator: Accelerator) -> dict[str, float]:
    """Return the shares of a round over all ranks; 1 if all rows are left out."""
    rows = [batch["completion_mask"].any(dim=1) for batch in batches]
    kept_batches = torch.stack([of_batch.any() for of_batch in rows])
    kept_rows = torch.cat(rows)
    sums = [kept_rows.sum(), kept_rows.new_ones(kept_rows.shape).sum(), kept_batches.sum()]
    counted = torch.stack([*sums, torch.full_like(sums[0], len(batches))]).double()
    n, num_rows, m, num_batches = accelerator.reduce(counted, reduction="sum").tolist()
    return {KEPT_ROWS: n / num_rows if n else 1.0, KEPT_BATCHES: m / num_batches if m else 1.0}


@contextlib.contextmanager
def entropy_over_kept(trainer: TrlTrainer, share: float) -> Iterator[None]:
    """Divide TRL's entropy coefficient by `share` in this context, but log it unchanged.

    The bonus is a mean over micro-batches, including empty ones. An adaptive coefficient changes within the loss, and
    is left to TRL.
    """
    if share == 1.0 or not getattr(trainer, "_entropy_bonus_enabled", False) or trainer.use_adaptive_entropy:
        yield
        return
    coef = trainer.entropy_coef
    logged = trainer._metrics["train" if trainer.model.training else "eval"]["entropy_coef"]
    count = len(logged)
    with temporary_attributes(trainer, entropy_coef=coef / share):
        yield
    logged[count:] = [coef] * (len(logged) - count)


def count_metrics_over_kept(trainer: TrlTrainer, inputs: TrlBatch, *, counts_clipped_rows: bool) -> None:
    """Correct TRL's metrics that are means over a micro-batch's rows to means over the rows that count.

    `counts_clipped_rows`: TRL logs the share of clipped rows instead of clipped tokens.
    """
    kept = inputs["completion_mask"].any(dim=1)
    counts = torch.stack([kept.sum(), kept.new_ones(kept.shape).sum()]).double()
    n, num_rows = trainer.accelerator.reduce(counts, reduction="sum").tolist()
    metrics = trainer._metrics["train" if trainer.model.training else "eval"]

    def over_kept(name: str, of_left_out: float) -> None:
        if metrics.get(name):
            total = metrics[name][-1] * num_rows - of_left_out * (num_rows - n)
            metrics[name][-1] = total / n if n else torch.nan

    over_kept("vespo/phi_seq_mean", 1.0)  # left-out rows have a ratio of 1
    if not counts_clipped_rows:
        return
    for name in _ROW_METRICS:
        over_kept(name, 0.0)
    # Each row is either clipped or not, so the minimum is 1 only if all are.
    for extreme, mean in (("low_min", "low_mean"), ("high_max", "high_mean")):
        if metrics.get(f"clip_ratio/{mean}"):
            share = metrics[f"clip_ratio/{mean}"][-1]
            is_all = share > 1 - 0.5 / max(num_rows, 1)
            metrics[f"clip_ratio/{extreme}"][-1] = float(is_all if extreme == "low_min" else share > 0)
