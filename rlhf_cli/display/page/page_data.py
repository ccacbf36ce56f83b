"""Make the curves and choose the completions of the page.

A screen shows a few hundred points. If runs logged more, neighbouring log events are averaged into one point; the page
says how many. All runs of a plot share the grid, so that a band covers the same steps.

The choice of completions is not by content: for each prompt, the first answer in a run's table is taken, and the
prompts are those that the most runs answered. Their size is bounded, so that the page stays small even with 50 runs.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlhf_cli.analysis.comparison.logged_run import LoggedRun, reward_names
from rlhf_cli.analysis.comparison.settings import SettingRuns, estimate_over
from rlhf_cli.rewards.completion_text import shown_text
from rlhf_cli.runs.metrics_file import TOTAL, tables_by_step
from rlhf_cli.text.redaction import redacted_tree
from rlhf_cli.text.regular_files import LARGEST_TABLE, require_regular

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
    """Return logged metric -> its section of the page, in the page's order. `no_total`: why totals do not compare."""
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
        """Return the mean of the finite values at each x, NaN without any."""
        known = runs[place].metrics.series(name).finite
        groups = np.searchsorted(steps, known.steps) // width
        sums, counts = (np.bincount(groups, weights, minlength=len(x)) for weights in (known.values, None))
        return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)

    values = {place: on_grid(metric, place) for place in series}
    bands: dict[str, tuple[Row, Row, Row]] = {}
    for number, in_setting in members.items():
        rows = [values[place] for place in in_setting if place in values]
        if len(in_setting) > 1 and rows:
            # There is no interval at a step with one seed or equal seeds. Two seeds have no interval either: t with one
            # degree of freedom is 12.7, and such bands would hide every curve.
            found = [estimate_over(column.tolist()) for column in np.array(rows).T]
            is_wide = len(rows) >= _FEWEST_IN_A_BAND
            low, high = ([rounded(getattr(one, end)) if is_wide else None for one in found] for end in ("low", "high"))
            bands[str(number)] = [rounded(one.mean) for one in found], low, high
    bounds = (f"{metric}/low", f"{metric}/high")
    with_bounds = [place for place in series if all(name in runs[place].metrics for name in bounds)]
    intervals = {str(place): [_row(on_grid(name, place)) for name in bounds] for place in with_bounds}
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


def _row(values: NDArray[np.float64]) -> Row:
    return [rounded(value) for value in values.tolist()]


def rounded(value: object) -> float | int | None:
    """Return a number rounded to four significant digits, or None if it is not a finite number."""
    if not isinstance(value, int | float) or not math.isfinite(value):
        return None
    short = float(f"{float(value):.4g}")
    return int(short) if short.is_integer() and abs(short) < 1e15 else short


_MOST_PARTS = 6
_EFFECTIVE = ".effective"
_MOST_STEPS = 10
_MOST_PROMPTS = 3
_LONGEST_TEXT, _LONGEST_PROMPT, _LONGEST_ERROR = 2000, 1200, 160

Answer = dict[str, Any]
"""A completion: `prompt`, `text`, `total` (by the run's own weights), and `scores`. A score has `name`, `raw`,
`weighted`, and where they apply `parts`, `closed` and `error`.
"""


def completion_pages(runs: Sequence[LoggedRun]) -> dict[str, Any]:
    """Read a few steps of every run's tables and return what the page shows of them.

    `steps` has one page per step, `notes` the tables that could not be read, `num_steps` counts the steps of all runs.
    """
    order = {name: place for place, name in enumerate(reward_names(runs))}
    tables = [dict(tables_by_step(run.folder.path)) if run.folder is not None else {} for run in runs]
    # Evenly spaced steps, both ends included, of those for which the most runs have tables.
    counts = Counter(step for table in tables for step in table)
    common = sorted(step for step, count in counts.items() if count == max(counts.values()))
    chosen = [common[round(at)] for at in np.linspace(0, max(0, len(common) - 1), min(_MOST_STEPS, len(common)))]
    notes: list[str] = []
    steps: list[dict[str, object]] = []
    for step in dict.fromkeys(chosen):
        rows: dict[int, list[Answer]] = {}
        for place, table in enumerate(tables):
            if step in table:
                try:
                    rows[place] = _read_answers(table[step], order)
                except (OSError, ValueError) as error:
                    why = (str(error).splitlines() or [type(error).__name__])[0]
                    notes.append(f"{runs[place].name}: {table[step].name} cannot be read ({why})")
        of_run = [dict.fromkeys(answer["prompt"] for answer in answers) for answers in rows.values()]
        num_runs = Counter(prompt for prompts in of_run for prompt in prompts)
        if beside := [_beside(prompt, rows) for prompt, _ in num_runs.most_common(_MOST_PROMPTS)]:
            steps.append({"step": step, "prompts": beside})
    return {"steps": steps, "notes": notes, "num_steps": len(counts)}


def _read_answers(file: Path, order: Mapping[str, int]) -> list[Answer]:
    """Return the rows of a table, with scores in the `order` of the rewards. Raise OSError or ValueError."""
    import pyarrow.parquet

    require_regular(file, LARGEST_TABLE)
    with pyarrow.parquet.ParquetFile(file) as table:
        names = table.schema_arrow.names
        rewards = [name.removesuffix(_EFFECTIVE) for name in names if name.endswith(_EFFECTIVE)]
        rewards.sort(key=lambda name: order.get(name, len(order)))
        wanted = {"prompt", "completion", "total", *rewards}
        wanted |= {f"{name}.{what}" for name in rewards for what in ("weighted", "closed_by", "error", "parts")}
        rows = table.read(columns=[name for name in names if name in wanted]).to_pylist()
    answers: list[Answer] = []
    for row in rows:
        prompt, text = (_text_of(row.get(column)) for column in ("prompt", "completion"))
        scores: list[dict[str, object]] = []
        for name in rewards:
            score = {"name": name, "raw": rounded(row.get(name)), "weighted": rounded(row.get(f"{name}.weighted"))}
            with suppress(ValueError, TypeError, KeyError):  # of a table that somebody else wrote
                parts = [rounded(part["reward"]) for part in json.loads(str(row.get(f"{name}.parts")))]
                score |= {"parts": parts} if 1 < len(parts) <= _MOST_PARTS else {}
            if (closed_by := row.get(f"{name}.closed_by")) is not None:
                score["closed"] = str(closed_by)
            if (error := row.get(f"{name}.error")) is not None:
                score["error"] = redacted_tree(str(error), values_only=True)[:_LONGEST_ERROR]
            scores.append(score)
        answers.append({"prompt": prompt, "text": text, "total": rounded(row.get("total")), "scores": scores})
    return answers


def _text_of(content: object) -> str:
    """Return a text unchanged; for a conversation, return its messages, each after its role."""
    if isinstance(content, list):
        messages = [message for message in content if isinstance(message, dict)]
        return "\n".join(f"{one.get('role', '?')}: {shown_text(one)}" for one in messages)
    return "" if content is None else str(content)


def _beside(prompt: str, rows: Mapping[int, list[Answer]]) -> dict[str, object]:
    """Return the first answer of each run to a prompt; `rows` maps run index -> the rows of its table."""
    answers = {}
    for place, table in rows.items():
        if given := [answer for answer in table if answer["prompt"] == prompt]:
            text = redacted_tree(given[0]["text"], values_only=True)
            cut = {"prompt": "", "text": text[:_LONGEST_TEXT], "more": max(0, len(text) - _LONGEST_TEXT)}
            answers[str(place)] = {**given[0], **cut, "of": len(given)}
    return {"prompt": redacted_tree(prompt, values_only=True)[:_LONGEST_PROMPT], "answers": answers}
