"""Take the mean of a loss over the rows that are not left out of it.

Left-out rows (truncation=exclude, no score) are removed from the divisor of the loss, too: a row with a zeroed mask
adds 0 to TRL's sum, but shrinks every step. Each loss is linear in advantage and KL coefficient together, so
multiplying both by N/n gives the mean over the n of N rows (or micro-batches, by the loss) that count in a round of all
ranks; docs/how-to/ppo.md derives it. The share is that of the round, not of the optimizer step, so every row has the
same weight, however the rows are split into steps, micro-batches and processes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor

from rlhf_cli.process import temporary_attributes
from rlhf_cli.tables.trl_trainers import POLICY_LOSSES, Normaliser
from rlhf_cli.trainers.extensions import ExtendedTrainer
from rlhf_cli.trainers.trl_protocol import TrlBatch, TrlTrainer

KEPT_ROWS, KEPT_BATCHES = "kept_rows", "kept_batches"
"""Keys of a micro-batch: the shares of the round's rows, and of its micro-batches, that are not left out."""
IN_WINDOW = "in_window"
"""Key of a micro-batch: the rows and tokens that count in its accumulation window, divided by its micro-batches."""

_ROW_METRICS = ("clip_ratio/low_mean", "clip_ratio/high_mean", "clip_ratio/region_mean", "cispo_clip_ratio")


class LeftOutMixin(ExtendedTrainer):
    """For a TRL trainer with reward functions: its loss is a mean over the rows that count."""

    loss_divisor: Normaliser | None
    """What the trainer's loss divides by, None if that follows from its `loss_type`; set by RewardMixin."""

    def drop_rows(self, output: TrlBatch, is_dropped: Tensor) -> None:
        """Remove this rank's rows of a mask (rows,) from the loss: TRL zeroes their advantage, but not KL and entropy.

        All ranks must call this together.
        """
        is_dropped = is_dropped.to(output["completion_mask"].device)
        keep = (~is_dropped).to(output["completion_mask"].dtype).unsqueeze(1)
        output["completion_mask"] = output["completion_mask"] * keep
        if "tool_mask" in output:
            output["tool_mask"] = output["tool_mask"] * keep
        # RLOO's are summed over the row before; exp(0 - old) of a long row, or an unlikely token, is infinite.
        for name in ("old_logps", "old_per_token_logps"):
            if (old := output.get(name)) is not None:
                output[name] = old.masked_fill(is_dropped.view(-1, *[1] * (old.dim() - 1)), 0.0)
        if "num_items_in_batch" in output:
            output["num_items_in_batch"] = self.accelerator.gather(tokens_in_loss(output).sum()).sum()

    def _prepare_inputs(self, generation_batch: Any) -> TrlBatch:
        before = self._buffered_inputs
        inputs = super()._prepare_inputs(generation_batch)
        if not self.model.training:
            return self._counted([inputs])[0]
        batches = self._buffered_inputs
        assert batches is not None
        if batches is not before:
            batches = self._buffered_inputs = self._counted(batches)
        return batches[self._step % self.args.steps_per_generation]

    def _counted(self, batches: list[TrlBatch]) -> list[TrlBatch]:
        """Return a round's micro-batches, each with the counts of all ranks and the shares of the round that are kept.

        The shares are 1 if all rows are left out. The host waits for the device once.
        """
        own = torch.stack([rows_and_tokens(batch) for batch in batches])
        num_rows = sum(len(batch["completion_mask"]) for batch in batches)
        others = torch.stack([(own[:, 0] > 0).sum(), own.new_tensor(num_rows), own.new_tensor(len(batches))])
        reduced = self.accelerator.reduce(torch.cat([own.flatten(), others]), reduction="sum").cpu()
        counts, (m, all_rows, all_batches) = reduced[:-3].view(-1, 2), reduced[-3:].tolist()
        n = float(counts[:, 0].sum())
        shares = {KEPT_ROWS: n / all_rows if n else 1.0, KEPT_BATCHES: m / all_batches if m else 1.0}
        window = min(self.args.gradient_accumulation_steps, len(batches))
        means = [part.mean(dim=0).tolist() for part in counts.split(window) for _ in part]
        return [batch | shares | {IN_WINDOW: mean} for batch, mean in zip(batches, means, strict=True)]

    def _compute_loss(self, model: Any, inputs: TrlBatch) -> Tensor:
        is_whole = inputs.get(KEPT_ROWS, 1.0) == 1.0
        if is_whole and any(inputs.get(IN_WINDOW, [1.0])):  # else no row counts
            return super()._compute_loss(model, inputs)
        share = self.kept_share(inputs)
        metrics = self._metrics["train" if self.model.training else "eval"]
        before = {name: len(values) for name, values in metrics.items()}
        with temporary_attributes(self, beta=self.beta / share), entropy_over_kept(self, inputs[KEPT_BATCHES]):
            loss = super()._compute_loss(model, inputs | {"advantages": inputs["advantages"] / share})
        is_sequence_level = self.loss_divisor is None and getattr(self, "importance_sampling_level", "") == "sequence"
        counts_clipped_rows = is_sequence_level or not hasattr(self, "loss_type")  # RLOO
        new = {name: values for name, values in metrics.items() if len(values) > before.get(name, 0)}
        count_metrics_over_kept(new, inputs, self.accelerator, counts_clipped_rows=counts_clipped_rows)
        return loss

    def kept_share(self, inputs: TrlBatch) -> float:
        """Return the share of the loss's divisor that is not left out; 1 if it divides by tokens of the round."""
        divisor = self.loss_divisor or POLICY_LOSSES[self.loss_type]
        key = KEPT_BATCHES if divisor == "micro-batch" else KEPT_ROWS
        return 1.0 if divisor == "window" else float(inputs.get(key, 1.0))


@contextlib.contextmanager
def entropy_over_kept(trainer: TrlTrainer, share: float) -> Iterator[None]:
    """Divide TRL's entropy coefficient by `share` in this context, but log it unchanged.

    The bonus is a mean over micro-batches, including empty ones. An adaptive coefficient changes within the loss, and
    is left to TRL.
    """
    if share == 1.0 or not getattr(trainer, "_entropy_bonus_enabled", False) or trainer.use_adaptive_entropy:
        yield
        return
    coef, logged = trainer.entropy_coef, trainer._metrics["train" if trainer.model.training else "eval"]["entropy_coef"]
    count = len(logged)
    with temporary_attributes(trainer, entropy_coef=coef / share):
        yield
    logged[count:] = [coef] * (len(logged) - count)


def tokens_in_loss(batch: TrlBatch) -> Tensor:
    """Return (B, T) integers, 1 = the policy chose this token; a tool's answer and padding are 0."""
    in_loss: Tensor = batch["completion_mask"] * batch.get("tool_mask", 1)
    return in_loss


def rows_and_tokens(batch: TrlBatch) -> Tensor:
    """Return (2,) float64, the rows and the tokens that count in a micro-batch of this rank."""
    return torch.stack([batch["completion_mask"].any(dim=1).sum(), tokens_in_loss(batch).sum()]).double()


def count_metrics_over_kept(
    metrics: dict[str, list[float]], inputs: TrlBatch, accelerator: Accelerator, *, counts_clipped_rows: bool
) -> None:
    """Correct TRL's new metrics of a micro-batch so that their mean over the window is one over what counts.

    TRL averages some over all rows, and its log weighs a micro-batch without a row like the others: a metric times the
    micro-batch's own rows or tokens, divided by those of a micro-batch on average, is right in that mean.
    `counts_clipped_rows`: TRL logs the share of clipped rows instead of clipped tokens.
    """
    num_rows = float(len(inputs["advantages"]) * accelerator.num_processes)
    n, tokens = own = accelerator.reduce(rows_and_tokens(inputs), reduction="sum").tolist()
    by_row = {"vespo/phi_seq_mean": 1.0} | (dict.fromkeys(_ROW_METRICS, 0.0) if counts_clipped_rows else {})
    for name, of_left_out in by_row.items():  # left-out rows have a ratio of 1
        if name in metrics:
            total = metrics[name][-1] * num_rows - of_left_out * (num_rows - n)
            metrics[name][-1] = total / n if n else torch.nan
    # Each row is either clipped or not, so the minimum is 1 only if all are.
    for extreme, mean in (("low_min", "low_mean"), ("high_max", "high_mean")):
        if counts_clipped_rows and f"clip_ratio/{mean}" in metrics:
            share = metrics[f"clip_ratio/{mean}"][-1]
            is_all = share > 1 - 0.5 / max(n, 1)
            is_clipped = is_all if extreme == "low_min" else share > 0
            metrics[f"clip_ratio/{extreme}"][-1] = float(is_clipped) if n else torch.nan
    rows, all_tokens = inputs.get(IN_WINDOW, own)
    for name in ("kl", "entropy", *_ROW_METRICS, "vespo/phi_seq_mean"):
        if name in metrics:
            count, mean = (n, rows) if name in by_row else (tokens, all_tokens)
            metrics[name][-1] = (metrics[name][-1] * count / mean if count else 0.0) if mean else torch.nan
