"""Define the measures of a comparison: raw components, a total if fair, KL, length, truncation, evaluations."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rlhf_cli.analysis.comparison.logged_run import LoggedRun, reward_names
from rlhf_cli.errors import UserError
from rlhf_cli.runs.metric_arrays import Window, number_of
from rlhf_cli.runs.metrics_file import TOTAL
from rlhf_cli.tables.metrics import LEARNING_METRICS, sign_of
from rlhf_cli.text.suggest import nearest

COMPONENT, TOTALS, COST, LEARNT, HELD_OUT, ASKED = "component", "total", "cost", "learnt", "held out", "asked"
"""The kinds of measures, in display order."""

_KL = ("kl/k1_policy_ref", "kl")
_LENGTH = "completions/mean_length"
_TRUNCATED = ("rewards/truncation/fraction", "completions/clipped_ratio")
_EVALUATED = re.compile(
    r"^eval_(?!(?:\w+_)?mean_token_)(?:(?P<set>\w+)_)?"
    r"(?P<name>greedy/(total|rewards/[^/]+)|(pass|maj)@\d+/[^/]+|loss|accuracy|rewards/accuracies)$"
)
_OF_SET = re.compile(r"^(held_out|training_rows|other_rows)-")
"""The files of a named set: `held_out-easy`."""
_SHOWN = frozenset({TOTAL, *_KL, _LENGTH, *_TRUNCATED, *LEARNING_METRICS})
_RAW = re.compile(r"^rewards/[^/]+/mean$")


@dataclass(frozen=True)
class RunMeasure:
    """A logged metric, or a figure of a file in RUN/eval; `sign` is 1 if more is better, -1 if less, 0 if neither."""

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


def is_shown(metric: str) -> bool:
    """Return whether a metric is compared by default, and so must be read for every run."""
    return metric in _SHOWN or _RAW.match(metric) is not None or _EVALUATED.match(metric) is not None


def default_measures(runs: Sequence[LoggedRun], *, no_total: str | None) -> list[RunMeasure]:
    """Return the measures to compare by default that at least one run has; no total if there is a reason for that.

    Of the evaluations in RUN/eval, only the one counts that most runs have, or all named sets if it is a named set's.
    """
    logged = {name for run in runs for name in run.metrics}
    rewards = [name for name in reward_names(runs) if f"rewards/{name}/mean" in logged]
    measures = [RunMeasure(name, f"rewards/{name}/mean", COMPONENT) for name in rewards]
    if no_total is None and TOTAL in logged:
        measures.append(RunMeasure("total", TOTAL, TOTALS))
    kl, truncated = (next((name for name in names if name in logged), "") for names in (_KL, _TRUNCATED))
    costs = [("kl", kl), ("length", _LENGTH), ("truncated", truncated)]
    costs = [(label if label not in rewards else metric, metric) for label, metric in costs if metric in logged]
    measures += [RunMeasure(label, metric, COST, sign_of(metric)) for label, metric in costs]
    learnt = [name for name in LEARNING_METRICS if name in logged and not rewards]
    measures += [RunMeasure(_label(name), name, LEARNT, sign_of(name)) for name in learnt]
    evaluated = sorted(filter(_EVALUATED.match, logged))
    for name in sorted(evaluated, key=lambda name: 0 if name.endswith("/total") else 1 if "greedy" in name else 2):
        if no_total is None or not name.endswith("/total"):
            measures.append(RunMeasure(_label(name), name, HELD_OUT, sign_of(name)))
    files = [name for run in runs for name in run.evaluations]
    most = max(dict.fromkeys(files), key=files.count, default="")  # the newest of several
    for file in dict.fromkeys(files):
        if file == most or (_OF_SET.match(file) and _OF_SET.match(most)):
            figures = dict.fromkeys(figure for run in runs for figure in run.evaluations.get(file, {}))
            shown = [name for name in figures if no_total is None or not name.endswith("/total")]
            measures += [RunMeasure(f"{file}: {name}", name, HELD_OUT, sign_of(name), file) for name in shown]
    return measures


def asked_measure(word: str, runs: Sequence[LoggedRun], *, where: str, all_names: Sequence[str] = ()) -> RunMeasure:
    """Return the measure for `correct`, `-kl` (less is better), `total` or a logged name. Raise UserError for none."""
    name = word.removeprefix("-")
    logged = dict.fromkeys(metric for run in runs for metric in run.metrics)
    known = {measure.label: measure for measure in default_measures(runs, no_total=None)}
    labels = list(known)
    known |= {measure.metric: replace(measure, label=_label(measure.metric)) for measure in known.values()}
    other = {"truncation": "truncated", "reward": "total"}.get(name, f"rewards/{name}")  # DPO's `accuracies`
    measure = known.get(name) or (known.get(other) if name not in logged else None)
    if measure is None and name in logged:
        measure = RunMeasure(_label(name), name, ASKED, sign_of(name))
    if measure is not None:
        return replace(measure, sign=-1 if word.startswith("-") else measure.sign or 1)
    close = nearest(name, dict.fromkeys([*labels, *known, *logged, *all_names]))
    hint = close or f"{where} {labels[0]}" if labels else close
    expected = f"one of {', '.join(dict.fromkeys(labels))}, or a name of metrics.jsonl"
    raise UserError("no run has logged this metric", where=where, got=name, expected=expected, hint=hint)


def _label(metric: str) -> str:
    if _RAW.match(metric):
        return metric.split("/")[1]
    if metric.startswith("eval_"):
        match = _EVALUATED.match(metric)
        name = f"{match['set']} {match['name']}" if match and match["set"] else metric.removeprefix("eval_")
        return "held out " + name.replace("rewards/", "").replace("/", " ")
    return metric
