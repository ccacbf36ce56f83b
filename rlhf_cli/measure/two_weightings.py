"""Compare the totals of the same rows under two weightings: means, order, and the best answer per prompt."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from rlhf_cli.measure.label_agreement import agreement
from rlhf_cli.measure.score_correlations import as_array, mean_ranks, pearson


@dataclass(frozen=True)
class TwoWeightings:
    """A comparison of two weightings. `words` are the overrides of the other one; only rows with both totals count.

    `ranks` is Spearman's correlation of the two totals. `num_prompts` counts the prompts whose answers have different
    totals; on `num_other_best` of them another answer is best. `moved` lists the rows whose rank changes most, with the
    change (down is negative). The areas under the ROC curve are None without labels.
    """

    words: tuple[str, ...]
    totals: tuple[float | None, ...]
    mean: float | None
    other_mean: float | None
    ranks: float | None
    num_prompts: int
    num_other_best: int
    moved: tuple[tuple[int, float], ...]
    roc_auc: float | None
    other_roc_auc: float | None


def two_weightings(
    words: Sequence[str],
    prompts: Sequence[object],
    totals: Sequence[float | None],
    others: Sequence[float | None],
    labels: Sequence[bool | None] | None,
    *,
    num_moved: int = 5,
) -> TwoWeightings:
    """Compare `totals` with `others`, the totals under `words`. All sequences have one entry per row."""
    pairs = list(zip(totals, others, strict=True))
    known = [row for row, (total, other) in enumerate(pairs) if total is not None and other is not None]
    first, second = as_array([totals[row] for row in known]), as_array([others[row] for row in known])
    turned = mean_ranks(second) - mean_ranks(first)
    moves = sorted(((row, float(turned[place])) for place, row in enumerate(known)), key=lambda move: -abs(move[1]))
    by_prompt: dict[str, list[int]] = {}
    for row in known:
        by_prompt.setdefault(json.dumps(prompts[row], sort_keys=True, default=str), []).append(row)
    groups = [rows for rows in by_prompt.values() if len({totals[row] for row in rows}) > 1]
    changed = [rows for rows in groups if not _best(rows, totals) & _best(rows, others)]
    return TwoWeightings(
        words=tuple(words),
        totals=tuple(others),
        mean=fmean(first.tolist()) if known else None,
        other_mean=fmean(second.tolist()) if known else None,
        ranks=pearson(mean_ranks(first), mean_ranks(second)),
        num_prompts=len(groups),
        num_other_best=len(changed),
        moved=tuple((row, move) for row, move in moves[:num_moved] if move),
        roc_auc=None if labels is None else agreement("total", totals, labels).roc_auc,
        other_roc_auc=None if labels is None else agreement("total", others, labels).roc_auc,
    )


def _best(rows: Sequence[int], totals: Sequence[float | None]) -> set[int]:
    """Return the rows of one prompt with the highest total."""
    highest = max(total for row in rows if (total := totals[row]) is not None)
    return {row for row in rows if totals[row] == highest}
