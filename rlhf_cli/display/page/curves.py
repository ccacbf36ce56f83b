"""Make the curves of the page.

A screen shows a few hundred points. If runs logged more, neighbouring log events are averaged into one point; the page
says how many. All runs of a plot share the grid, so that a band covers the same steps.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlhf_cli.analysis.comparison.logged_run import LoggedRun, reward_names
from rlhf_cli.analysis.comparison.settings import SettingRuns, estimate
from rlhf_cli.runs.metrics_file import TOTAL

COMPONENTS, SHARES, HEALTH, EVALUATIONS = "components", "shares", "health", "evaluations"
"""The sections that hold plots."""

_MOST_IN_SECTION = 24

_HEALTH = (
    *("kl/k1_policy_ref", "kl", "completions/mean_length", "rewards/truncation/fraction", "completions/clipped_ratio"),
    *("loss", "entropy", "frac_reward_zero_std", "clip_ratio/region_mean", "ppo/explained_variance", "ppo/value_loss"),
    *("ppo/clip_fraction", "ppo/approx_kl_k3_old_new", "kl/coef", "grad_norm"),
)
_LEARNT = (
    *("loss", "accuracy", "margin", "rewards/accuracies", "rewards/margins", "rewards/chosen", "rewards/rejected"),
    *("mean_token_accuracy", "mean_reward"),
)
_EVALUATED = re.compile(
    r"^eval_(\w+_)?((greedy|sampled)/(total|rewards/[^/]+|truncated|tokens)|(pass|maj)@\d+/[^/]+"
    r"|loss|accuracy|margin|mean_reward|rewards/(accuracies|margins|chosen|rejected)|mean_token_accuracy)$"
)
_FROM_ZERO = re.compile(r"share|fraction|ratio|length|tokens$|open")
"""Metrics whose axis includes zero, as for shares and lengths."""


def plotted_metrics(runs: Sequence[LoggedRun], *, no_total: str | None) -> dict[str, str]:
    """Return the logged metrics to plot and their sections of the page, in its order.

    `no_total` is why totals cannot be compared, or None.
    """
    logged = {name: None for run in runs for name in run.metrics}
    rewards = [name for name in reward_names(runs) if f"rewards/{name}/mean" in logged]
    components = [*_LEARNT]
    if rewards:
        gates = [name for name in (f"rewards/{name}/open_fraction" for name in rewards) if name in logged]
        closed = [name for name in gates if any((run.metrics.series(name).values < 1).any() for run in runs)]
        components = [*(f"rewards/{name}/mean" for name in rewards), *([] if no_total else [TOTAL]), *closed]
    evaluated = [name for name in logged if _EVALUATED.match(name) and not (no_total and name.endswith("/total"))]
    sections = {
        COMPONENTS: components,
        SHARES: [f"rewards/{name}/advantage_share" for name in rewards],
        HEALTH: [name for name in _HEALTH if name not in components],
        EVALUATIONS: evaluated,
    }
    return {
        name: section
        for section, names in sections.items()
        for name in [name for name in names if name in logged][:_MOST_IN_SECTION]
    }


MOST_VALUES = 250_000
"""Maximum number of values on one page, about 1 MB compressed. Beyond it, more events are averaged per point."""

_MOST_POINTS, _LEAST_POINTS = 600, 40
_FEWEST_IN_A_BAND = 3
Row = list[float | int | None]


def plots_of(
    runs: Sequence[LoggedRun], settings: Sequence[SettingRuns], metrics: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Return what the page's script draws of each metric that any run logged, over the optimizer steps `x`.

    `lines` maps run index -> values, None if not logged. `bands` maps the index of a setting with several
    seeds -> (mean, low, high). `intervals` maps run index -> the (low, high) that the run logged itself. `events` is
    the number of steps averaged into a point.
    """
    num_bands = sum(len(setting.by_seed) > 1 for setting in settings)
    num_lines = sum(name in run.metrics for name in metrics for run in runs) + 3 * num_bands * len(metrics)
    most_points = max(_LEAST_POINTS, min(_MOST_POINTS, MOST_VALUES // max(1, num_lines)))
    places = {run.name: place for place, run in enumerate(runs)}
    members = {number: [places[run.name] for run in setting.runs] for number, setting in enumerate(settings)}
    plots = (_plot(name, section, runs, members, most_points) for name, section in metrics.items())
    return [plot for plot in plots if plot is not None]


def _plot(
    metric: str, section: str, runs: Sequence[LoggedRun], members: Mapping[int, Sequence[int]], most_points: int
) -> dict[str, Any] | None:
    series = {place: run.metrics.series(metric) for place, run in enumerate(runs) if metric in run.metrics}
    if not any(np.isfinite(one.values).any() for one in series.values()):
        return None
    steps = np.unique(np.concatenate([one.steps for one in series.values()]))
    width = math.ceil(len(steps) / most_points)
    x = steps[np.minimum(np.arange(0, len(steps), width) + width // 2, len(steps) - 1)]

    def on_grid(name: str, place: int) -> NDArray[np.float64]:
        one = runs[place].metrics.series(name)
        return _means(np.searchsorted(steps, one.steps) // width, one.values, len(x))

    values = {place: on_grid(metric, place) for place in series}
    bands = {}
    for number, in_setting in members.items():
        rows = [values[place] for place in in_setting if place in values]
        if len(in_setting) > 1 and rows:
            bands[str(number)] = _band(np.array(rows))
    intervals = {
        str(place): (_row(on_grid(f"{metric}/low", place)), _row(on_grid(f"{metric}/high", place)))
        for place in series
        if f"{metric}/low" in runs[place].metrics and f"{metric}/high" in runs[place].metrics
    }
    return {
        "id": "plot-" + re.sub(r"[^a-zA-Z0-9]+", "-", metric).strip("-"),
        "section": section,
        "name": metric,
        "zero": bool(_FROM_ZERO.search(metric)),
        "events": width,
        "x": x.tolist(),
        "lines": {str(place): _row(row) for place, row in values.items()},
        "bands": bands,
        "intervals": intervals,
    }


def _means(groups: NDArray[np.int64], values: NDArray[np.float64], count: int) -> NDArray[np.float64]:
    """Return the mean of the finite values in each of `count` groups, NaN for a group without any."""
    known = np.isfinite(values)
    sums = np.bincount(groups[known], weights=values[known], minlength=count)
    counts = np.bincount(groups[known], minlength=count)
    with np.errstate(invalid="ignore"):
        means: NDArray[np.float64] = np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
    return means


def _band(rows: NDArray[np.float64]) -> tuple[Row, Row, Row]:
    """Return the mean and interval over the seeds at each step.

    There is no interval at a step with one seed or equal seeds. Two seeds have no interval either: t with one degree of
    freedom is 12.7, and such bands would hide every curve.
    """
    found = [estimate(column.tolist()) for column in rows.T]
    is_wide = len(rows) >= _FEWEST_IN_A_BAND
    low, high = ([rounded(getattr(one, end)) if is_wide else None for one in found] for end in ("low", "high"))
    return [rounded(one.mean) for one in found], low, high


def _row(values: NDArray[np.float64]) -> Row:
    return [rounded(value) for value in values.tolist()]


def rounded(value: object) -> float | int | None:
    """Return a number rounded to four significant digits, or None if it is not a finite number."""
    if not isinstance(value, int | float) or not math.isfinite(value):
        return None
    short = float(f"{float(value):.4g}")
    return int(short) if short.is_integer() and abs(short) < 1e15 else short
