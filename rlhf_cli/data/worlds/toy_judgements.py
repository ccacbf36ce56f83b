"""Generate single answers to sums, judged good or bad: one half of each pair of toy_preferences.

A thumb up or down is cheaper to collect than a comparison. The label still comes from the comparison: an answer is good
if it was the better one of its pair.
"""

from __future__ import annotations

from random import Random

from rlhf_cli.data.worlds import toy_preferences


def generate(num_rows: int, seed: int, max_value: int = 20) -> list[dict[str, str | bool | float]]:
    """Return rows of `prompt`, `completion`, `label` (true for its pair's better answer) and its true `score`.

    Half of the labels are true, in random order, so that KTO's batches contain both kinds.
    """
    rng = Random(seed)
    rows: list[dict[str, str | bool | float]] = []
    for pair in toy_preferences.generate(num_rows, seed, max_value):
        is_good = rng.random() < 0.5
        side = "chosen" if is_good else "rejected"
        rows.append(
            {
                "prompt": pair["prompt"],
                "completion": pair[side],
                "label": is_good,
                "score": pair[f"score_{side}"],
            }
        )
    return rows
