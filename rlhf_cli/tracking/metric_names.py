"""Map a metric of docs/metrics.md to its name in a tracker: `train/reward`, `eval/greedy/total`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TypeGuard

from rlhf_cli.runs.metrics_file import Event

_EVALUATION = "eval_"
AT_THE_END = ("train_runtime", "train_samples_per_second", "train_steps_per_second", "train_loss", "total_flos")
"""Transformers logs these once, at the end of training; they have no step and keep their names."""


def shown_name(metric: str) -> str:
    """Return `eval/NAME` for `eval_NAME` and `train/NAME` for the rest, as transformers does for every tracker."""
    if metric.startswith(_EVALUATION):
        return f"eval/{metric.removeprefix(_EVALUATION)}"
    return f"train/{metric}"


def shown_metrics(event: Event) -> dict[str, float]:
    """Return the finite numbers of a log event, under their names in a tracker."""
    return {shown_name(name): float(value) for name, value in event.items() if name != "step" and is_number(value)}


def at_the_end(event: Event) -> dict[str, float]:
    """Return the metrics that transformers logs once at the end of training; {} for any other event."""
    return {name: float(value) for name in AT_THE_END if is_number(value := event.get(name))}


def is_number(value: object) -> TypeGuard[int | float]:
    """Return whether a value is a finite number; bools are not numbers."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def flat(tree: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    """Return dotted key -> value of a nested configuration; an empty section is a value."""
    leaves: dict[str, object] = {}
    for name, value in tree.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping) and value:
            leaves |= flat(value, f"{key}.")
        else:
            leaves[key] = value
    return leaves
