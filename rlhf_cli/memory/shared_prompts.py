"""Counts the maximum number of different prompts in a packed micro-batch, which stores each prompt once."""

from __future__ import annotations

import math

from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.config.trl_args import setting, trainer
from rlhf_cli.tables.policy_losses import POLICY_LOSSES


def most_prompts(rows: int, group: int) -> int:
    """Return the maximum number of prompts in a slice of `rows` rows of a list of whole groups cut into such slices.

    A slice starts at a multiple of the greatest common divisor of `rows` and `group` within a group, at most `group`
    minus that divisor after the group's start.
    """
    latest = group - math.gcd(rows, group)
    return -(-(latest + rows) // group)


def prompts_learned_from(experiment: Experiment, micro_batch: int, completions: int) -> int:
    """Return the maximum number of prompts in a micro-batch of a round of `completions` in one process.

    TRL shuffles a round. Rows are sorted by prompt again if the micro-batches of an optimizer step are the whole round
    and the loss does not depend on which rows share a micro-batch (trainers/passes/row_passes.py).
    """
    fields, args = trainer(experiment.trainer.trl), experiment.trainer.args
    group = _whole(setting(fields, args, "num_generations"))
    accumulation = _whole(setting(fields, args, "gradient_accumulation_steps"))
    micro_batches = max(1, completions // micro_batch)
    in_round = most_prompts(completions, group) if completions else micro_batch
    is_sorted = micro_batches == 1 or (accumulation % micro_batches == 0 and _may_reorder(experiment))
    if not is_sorted:
        return min(in_round, micro_batch)
    edges = 2 if completions % group else 0  # groups shared with another process
    return min(in_round, micro_batch, most_prompts(micro_batch, group) + edges)


def entropy_learns(experiment: Experiment) -> bool:
    """Return whether the loss has an entropy bonus."""
    fields, args = trainer(experiment.trainer.trl), experiment.trainer.args
    is_adaptive = setting(fields, args, "use_adaptive_entropy") is True
    return is_adaptive or setting(fields, args, "entropy_coef") not in (None, 0, 0.0)


def _may_reorder(experiment: Experiment) -> bool:
    fields, args = trainer(experiment.trainer.trl), experiment.trainer.args
    share = setting(fields, args, "top_entropy_quantile")
    if entropy_learns(experiment) or (isinstance(share, float) and share < 1.0):
        return False
    loss = POLICY_LOSSES.get(str(setting(fields, args, "loss_type")))
    return loss is None or loss.normaliser != "micro-batch"


def _whole(value: object) -> int:
    return value if isinstance(value, int) and value > 0 else 1
