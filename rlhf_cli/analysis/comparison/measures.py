"""Define the measures of a comparison: raw components, a total if fair, KL, length, truncation, evaluations."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from rlhf_cli.analysis.comparison.logged_run import LoggedRun, reward_names
from rlhf_cli.analysis.comparison.metric_columns import MetricColumns, Window
from rlhf_cli.errors import UserError
from rlhf_cli.runs.metrics_file import TOTAL
from rlhf_cli.runs.run_folder import GREEDY, SAMPLED
from rlhf_cli.text.suggest import nearest

COMPONENT, TOTALS, COST, LEARNT, HELD_OUT, ASKED = "component", "total", "cost", "learnt", "held out", "asked"
"""The kinds of measures, in display order."""

_OF_ANSWERS = re.compile(r"^eval_((greedy|sampled)/(total|rewards/)|(pass|maj)@)|^rewards/[^/]+/(mean|effective_mean)$")
"""Reward means, of which more is better whatever the reward's name."""
_LESS = re.compile(
    r"(^|[/_ ])(loss|kl|perplexity|ece|errors|timeouts|excluded|seconds|clipped_ratio|truncated|grad_norm|"
    r"frac_reward_zero_std)($|[/_ ])|^kl/|truncation/fraction$"
)
_MORE = re.compile(
    r"^(eval_)?(rewards?|reward)(/|$)|accurac|margins?$|pass@|maj@|^eval_(greedy|sampled)/|explained_variance"
)
_KL = ("kl/k1_policy_ref", "kl")
_LENGTH = "completions/mean_length"
_TRUNCATED = ("rewards/truncation/fraction", "completions/clipped_ratio")
_LEARNT = ("loss", "accuracy", "margin", "rewards/accuracies", "rewards/margins", "mean_token_accuracy")
_EVALUATED = re.compile(r"^eval_(greedy/(total|rewards/[^/]+)|(pass|maj)@\d+/[^/]+|loss|accuracy|rewards/accuracies)$")
_SIGN_OF_FIGURE = {
    **{f"{part}/truncated": -1 for part in (GREEDY, SAMPLED)},
    **{f"{part}/tokens": 0 for part in (GREEDY, SAMPLED)},
    **{"log_loss": -1, "ece": -1},
}
"""Full names of evaluation figures of which more is not better. Full, since a reward may be called `not_truncated`."""
_SHOWN = frozenset({TOTAL, *_KL, _LENGTH, *_TRUNCATED, *_LEARNT})
_RAW = re.compile(r"^rewards/[^/]+/mean$")


@dataclass(frozen=True)
class RunMeasure:
    """A number that every run may have. `sign` is 1 if more is better, -1 if less is, 0 if neither.

    `metric` is a logged name, or with `evaluation` (the name of a file in RUN/eval) one of its figures.
    """

    label: str
    metric: str
    kind: str
    sign: int = 1
    evaluation: str | None = None

    @property
    def direction(self) -> str:
        """Return which direction is better, in words."""
        return {1: "more is better", -1: "less is better", 0: "neither more nor less is better"}[self.sign]

    def of(self, run: LoggedRun, window: Window, up_to: int | None = None) -> float:
        """Return the number of a run, or NaN."""
        if self.evaluation is not None:
            return float(run.evaluations.get(self.evaluation, {}).get(self.metric, float("nan")))
        return number_of(run.metrics, self.metric, window, up_to=up_to)


def number_of(
    metrics: MetricColumns, metric: str, window: Window, *, more_is_better: bool = True, up_to: int | None = None
) -> float:
    """Return the value of a logged metric in a window, or NaN; for a held-out metric its latest finite value."""
    series = metrics.series(metric)
    if up_to is not None:
        series = series.up_to(up_to)
    if metric.startswith("eval_"):
        finite = series.values[np.isfinite(series.values)]
        return float(finite[-1]) if len(finite) else float("nan")
    return window.of(series, more_is_better=more_is_better)


def is_shown(metric: str) -> bool:
    """Return whether a metric is compared by default, and so must be read for every run."""
    return metric in _SHOWN or _RAW.match(metric) is not None or _EVALUATED.match(metric) is not None


def default_measures(runs: Sequence[LoggedRun], *, no_total: str | None) -> list[RunMeasure]:
    """Return the measures to compare by default that at least one run has.

    `no_total` is the reason why totals are not comparable, or None.
    """
    logged = {name for run in runs for name in run.metrics}
    rewards = [name for name in reward_names(runs) if f"rewards/{name}/mean" in logged]
    measures = [RunMeasure(name, f"rewards/{name}/mean", COMPONENT) for name in rewards]
    if no_total is None and TOTAL in logged:
        measures.append(RunMeasure("total", TOTAL, TOTALS))
    kl, truncated = (next((name for name in names if name in logged), "") for names in (_KL, _TRUNCATED))
    costs = [("kl", kl, -1), ("length", _LENGTH, 0), ("truncated", truncated, -1)]
    measures += [RunMeasure(label, metric, COST, sign) for label, metric, sign in costs if metric in logged]
    if not rewards:
        measures += [RunMeasure(_label(name), name, LEARNT, sign_of(name)) for name in _LEARNT if name in logged]
    evaluated = sorted(filter(_EVALUATED.match, logged))
    for name in sorted(evaluated, key=lambda name: 0 if name.endswith("/total") else 1 if "greedy" in name else 2):
        if no_total is None or not name.endswith("/total"):
            measures.append(RunMeasure(_label(name), name, HELD_OUT, sign_of(name)))
    return measures + _of_evaluation_files(runs, no_total)


def asked_measure(word: str, runs: Sequence[LoggedRun], *, where: str, all_names: Sequence[str] = ()) -> RunMeasure:
    """Return the measure for `correct`, `-kl`, `total` or a logged name; a minus means that less is better.

    Raise UserError, with the most similar name and the default measures, if no run has it.
    """
    name = word.removeprefix("-")
    logged = dict.fromkeys(metric for run in runs for metric in run.metrics)
    known = {measure.label: measure for measure in default_measures(runs, no_total=None)}
    labels = list(known)
    known |= {measure.metric: replace(measure, label=_label(measure.metric)) for measure in known.values()}
    measure = known.get(name) or known.get({"truncation": "truncated", "reward": "total"}.get(name, name))
    if measure is None and name in logged:
        measure = RunMeasure(_label(name), name, ASKED, sign_of(name))
    if measure is not None:
        return replace(measure, sign=-1 if word.startswith("-") else measure.sign or 1)
    close = nearest(name, dict.fromkeys([*labels, *known, *logged, *all_names]))
    raise UserError(
        "no run has logged such a metric",
        where=where,
        got=name,
        expected=f"one of {', '.join(dict.fromkeys(labels))}, or a name of metrics.jsonl",
        hint=close or f"{where} {labels[0]}" if labels else close,
    )


def sign_of(metric: str) -> int:
    """Return 1 if more of a metric is better, -1 if less is, 0 if its name does not tell."""
    if _LESS.search(metric) and not _OF_ANSWERS.search(metric):
        return -1
    return 1 if _MORE.search(metric) else 0


def _label(metric: str) -> str:
    if _RAW.match(metric):
        return metric.split("/")[1]
    if metric.startswith("eval_"):
        return "held out " + metric.removeprefix("eval_").replace("rewards/", "").replace("/", " ")
    return metric


def _of_evaluation_files(runs: Sequence[LoggedRun], no_total: str | None) -> list[RunMeasure]:
    """Return the figures of the evaluation that most runs have, the newest of several."""
    names = [name for run in runs for name in run.evaluations]
    if not names:
        return []
    most = max(dict.fromkeys(names), key=names.count)
    figures = dict.fromkeys(figure for run in runs for figure in run.evaluations.get(most, {}))
    return [
        RunMeasure(f"{most}: {name}", name, HELD_OUT, _SIGN_OF_FIGURE.get(name, 1), most)
        for name in figures
        if no_total is None or not name.endswith("/total")
    ]
