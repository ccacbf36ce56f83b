"""Settle one round of rollouts including the truncation policy, in training or in a later recomputation."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from rlhf_cli.numerics.reward_columns import Fill, RunningDeviation
from rlhf_cli.stack.aggregating import Aggregate
from rlhf_cli.stack.settling import Rules, Settled, settle
from rlhf_cli.stack.truncation import Endings, Truncation, with_truncation


def settle_round(
    raw: Tensor,
    fixed: Tensor,
    weights: Tensor,
    rules: Sequence[Rules],
    running: dict[str, RunningDeviation],
    *,
    names: Sequence[str],
    aggregate: Aggregate,
    num_generations: int,
    is_training: bool,
    truncation: Truncation,
    endings: Endings,
    fill: Fill,
) -> tuple[Settled, dict[str, RunningDeviation]]:
    """Return the settled round, with the truncation component if there is one, and the updated running deviations.

    Arguments and shapes are those of `settle`; `endings` tells how each of the N rows ended.
    """
    settled, after = settle(
        raw,
        fixed,
        weights,
        rules,
        running,
        names=names,
        aggregate=aggregate,
        num_generations=num_generations,
        is_training=is_training,
        is_left_out=truncation.leaves_out(endings),
        is_replaced=truncation.replaced(endings),
        fill=fill,
    )
    return (with_truncation(settled, truncation, endings) if truncation.changes_total else settled), after
