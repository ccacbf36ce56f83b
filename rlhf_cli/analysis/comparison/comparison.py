"""Compare runs: read them, group them, estimate, judge, export as JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

from rlhf_cli.analysis.comparison.logged_run import DifferingKey, LoggedRun, differences, is_seed, reward_names
from rlhf_cli.analysis.comparison.measures import COMPONENT, LEARNT, TOTALS, RunMeasure, asked_measure, default_measures
from rlhf_cli.analysis.comparison.settings import (
    GroupedRuns,
    conditions_apart,
    estimate_over,
    group_over_seeds,
    number_or_text,
    why_unfair,
)
from rlhf_cli.analysis.comparison.verdicts import MeasureVerdict, verdicts_on
from rlhf_cli.errors import RlhfError, UserError
from rlhf_cli.numerics.intervals import Estimate
from rlhf_cli.runs.metric_arrays import Window
from rlhf_cli.runs.run_folder import EDITED_CONFIG
from rlhf_cli.text.json_values import finite_or_none
from rlhf_cli.text.suggest import nearest

_MAKES_THE_TOTAL = ("rewards.", "primary", "aggregate", "truncation.")
_OF_THE_SCORE = ("fn", "model", "environment", "args", "offset", "clip", "gate", "with_eos", "max_length", "on_error")


def why_no_total(runs: Sequence[LoggedRun]) -> str | None:
    """Return why the totals of these runs are not comparable, or None if they are the same weighted sum."""
    different = [key for key in differences(runs) if key.startswith(_MAKES_THE_TOTAL) and not is_seed(key)]
    if not different:
        return None
    keys = [key for key in different if key.split(".")[-1] == "weight" or ".weight." in key] or different
    shown = ", ".join(keys[:3]) + (" and more" if len(keys) > 3 else "")
    return f"no total: {shown} {'differs' if len(keys) == 1 else 'differ'}, so totals are not comparable"


MOST_MEASURES = 3
_NOT_A_NUMBER = (1, 0.0)


@dataclass(frozen=True)
class ParetoFront:
    """Settings that have all measures `by`: the `best`, and each other one -> a best one that dominates it."""

    by: tuple[str, ...]
    best: tuple[str, ...]
    dominated: Mapping[str, str]


def pareto_front(by: Sequence[RunMeasure], estimates: Mapping[str, Mapping[str, Estimate]]) -> ParetoFront | None:
    """Return the front of two settings or more by two measures or more. Equal settings do not dominate each other."""
    if len(by) < 2 or len(estimates) < 2:
        return None
    signed: dict[str, tuple[float, ...]] = {}
    for name, by_label in estimates.items():
        means = [(measure.sign or 1, by_label[measure.label].mean) for measure in by]
        known = tuple(sign * mean for sign, mean in means if mean is not None)
        signed |= {name: known} if len(known) == len(by) else {}
    best = tuple(name for name in signed if not any(_dominates(other, signed[name]) for other in signed.values()))
    dominated = {
        name: next(winner for winner in best if _dominates(signed[winner], values))
        for name, values in signed.items()
        if name not in best
    }
    return ParetoFront(tuple(measure.label for measure in by), best, dominated)


def _dominates(one: Sequence[float], other: Sequence[float]) -> bool:
    return one != other and all(a >= b for a, b in zip(one, other, strict=True))


MOST_VALUES = 12
"""Up to this many values of a key are compared pairwise by default: 66 differences per component."""


@dataclass(frozen=True)
class ComparisonOptions:
    """The options of `rlhf compare`, without `--`; empty or None means a default derived from the runs."""

    on: tuple[str, ...] = ()
    by: str | None = None
    baseline: str | None = None
    window: Window = field(default_factory=Window)
    metrics: tuple[str, ...] = ()


@dataclass(frozen=True)
class Comparison:
    """Runs side by side. `values` maps label of a measure -> name of a run -> number (NaN if missing).

    `estimates` maps name of a setting -> label -> estimate over its seeds. `no_total` and `no_verdict` are the reasons
    why there is none although runs have rewards, or settings differ. `notes` are sentences for the reader.
    """

    asked: ComparisonOptions
    grouped: GroupedRuns
    measures: list[RunMeasure]
    values: Mapping[str, Mapping[str, float]]
    estimates: Mapping[str, Mapping[str, Estimate]]
    no_total: str | None
    verdicts: list[MeasureVerdict]
    no_verdict: str | None
    front: ParetoFront | None
    notes: list[str]

    @property
    def runs(self) -> list[LoggedRun]:
        """Return all runs, also those that do not count."""
        return self.grouped.runs

    @property
    def comparisons(self) -> int:
        """Return the number of differences in the family."""
        return max((pair.comparisons for verdict in self.verdicts for pair in verdict.differences), default=0)

    @property
    def in_common(self) -> list[str]:
        """Return the labels of the measures that at least two runs have."""
        num_finite = {label: sum(map(math.isfinite, numbers.values())) for label, numbers in self.values.items()}
        return [label for label, count in num_finite.items() if count > 1]


def compare(
    runs: Sequence[LoggedRun], asked: ComparisonOptions | None = None, *, all_names: Sequence[str] = ()
) -> Comparison:
    """Compare runs that were read together. `all_names` are logged metrics that were not read, for suggestions."""
    asked = asked or ComparisonOptions()
    grouped, notes = group_over_seeds(runs), list[str]()
    if grouped.up_to is not None:
        notes.append(f"no run has finished: runs are compared up to step {grouped.up_to}, which all of them reached")
    has_rewards = any(run.weights for run in runs)
    no_total = why_no_total(runs) if has_rewards else None
    measures = default_measures(runs, no_total=no_total)
    if asked.metrics:
        measures = [asked_measure(word, runs, where="--metrics", all_names=all_names) for word in asked.metrics]
    judged = [asked_measure(word, runs, where="--on", all_names=all_names) for word in asked.on]
    labels = {measure.label for measure in measures}
    measures += [measure for measure in judged if measure.label not in labels]
    if no_total is not None and any(measure.kind == TOTALS for measure in measures):
        no_total = f"total was asked for: {no_total.removeprefix('no total: ')}"
    values = {
        measure.label: {run.name: measure.of(run, asked.window, grouped.up_to) for run in runs} for measure in measures
    }
    estimates: dict[str, dict[str, Estimate]] = {}
    for setting in grouped.settings:
        of_setting = {label: [numbers[run.name] for run in setting.runs] for label, numbers in values.items()}
        estimates[setting.name] = {label: estimate_over(numbers) for label, numbers in of_setting.items()}
    axis = _axis(grouped, asked)
    baseline = _baseline(axis, asked.baseline)
    components, learnt = ([one for one in measures if one.kind == kind] for kind in (COMPONENT, LEARNT))
    judged = judged or (measures if asked.metrics else components or learnt[:1])
    unfair = why_unfair(grouped, axis, baseline) if axis is not None else None
    no_verdict = unfair or _why_no_verdict(asked, axis, grouped)
    verdicts: list[MeasureVerdict] = []
    if axis is not None and no_verdict is None:
        verdicts = verdicts_on(judged, grouped, values, axis, baseline=baseline)
    apart = conditions_apart(grouped)
    by = (measures if asked.metrics else components)[:MOST_MEASURES]
    front = pareto_front(by, estimates) if unfair is None and not apart else None
    notes += _notes(grouped, measures, values)
    if apart and unfair is None:
        notes.append(f"no front: settings differ in {', '.join(apart)}, and not every combination was run")
    return Comparison(asked, grouped, measures, values, estimates, no_total, verdicts, no_verdict, front, notes)


def _axis(grouped: GroupedRuns, asked: ComparisonOptions) -> DifferingKey | None:
    """Return the key to compare: the `--by` key, else the only one that differs."""
    shorts = [axis.short for axis in grouped.axes]
    if asked.by is None:
        if len(shorts) == 1 or not (asked.on or asked.baseline is not None):
            return grouped.axes[0] if len(shorts) == 1 else None
        what = "several keys differ, but a verdict is about one" if shorts else "the runs differ only in seeds"
        where, got, close = "--on" if asked.on else "--baseline", ", ".join(shorts) or "no key that differs", None
    else:
        for axis in grouped.axes:
            keys = (axis.short, axis.key, *axis.others)
            if any(key == asked.by or key.endswith(f".{asked.by}") for key in keys):
                return axis
        is_seed = any(asked.by in (axis.short, axis.key) for axis in grouped.seeds)
        what = "a verdict cannot be about seeds" if is_seed else "the runs do not differ in this key"
        where, got, close = "--by", asked.by, nearest(asked.by, shorts)
    expected = f"--by KEY, one of {', '.join(shorts)}" if shorts else "runs of two settings or more"
    hint = close or (f"--by {shorts[0]}" if shorts else None)
    raise UserError(what, where=where, got=got, expected=expected, hint=hint)


def _why_no_verdict(asked: ComparisonOptions, axis: DifferingKey | None, grouped: GroupedRuns) -> str | None:
    """Return why there is no verdict; an explicit request gets one, else it needs several seeds and few values."""
    if asked.on or asked.by is not None or asked.baseline is not None or not grouped.axes:
        return None
    if all(len(setting.by_seed) < 2 for setting in grouped.settings):
        return "no verdict: with one seed per setting there is no interval; seed=0,1,2,3,4 would give one"
    if axis is None:
        reasons = {one.short: why_unfair(grouped, one) for one in grouped.axes}
        fair = next((short for short, why in reasons.items() if why is None), None)
        why = next(iter(reasons.values())) if fair is None else f"--by {fair} gives a verdict on one of them"
        return f"no verdict: {len(reasons)} keys differ ({', '.join(reasons)}); {why}"
    if (num_values := len(set(axis.texts))) > MOST_VALUES:
        return f"no verdict: {num_values} values of {axis.short} are too many to compare pairwise; try --baseline VALUE"
    return None


def _baseline(axis: DifferingKey | None, typed: str | None) -> str | None:
    if axis is None or typed is None:
        return None
    for text in axis.texts:
        if text == typed or number_or_text(text)[:2] == number_or_text(typed)[:2] != _NOT_A_NUMBER:
            return text
    what, values = f"no run has this value of {axis.short}", list(dict.fromkeys(axis.texts))
    hint = nearest(typed, values) or f"--baseline {values[0]}"
    raise UserError(what, where="--baseline", got=typed, expected=", ".join(values), hint=hint)


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _notes(grouped: GroupedRuns, measures: list[RunMeasure], values: Mapping[str, Mapping[str, float]]) -> list[str]:
    notes = []
    if edited := [run.place for run in grouped.runs if run.folder and run.folder.is_config_edited()]:
        notes.append(f"{EDITED_CONFIG}: {_few(edited)}")
    trainers = list(dict.fromkeys(run.trainer for run in grouped.runs))
    if len(trainers) > 1:
        notes.append(f"runs of different trainers ({', '.join(trainers)}) are compared by the measures that both have")
    by_reason: dict[str, list[str]] = {}
    for setting in grouped.settings:
        for name, why in setting.left_out.items():
            by_reason.setdefault(why, []).append(name)
    notes += [f"{_few(runs)} {'does' if len(runs) == 1 else 'do'} not count: {why}" for why, runs in by_reason.items()]
    different = differences(grouped.runs)
    for name in reward_names(grouped.runs):
        prefix = f"rewards.{name}."
        keys = [key for key in different if key.startswith(prefix) and key.split(".")[2] in _OF_THE_SCORE]
        if keys and all(name in run.weights for run in grouped.runs):
            notes.append(f"reward {name} is not the same in all runs: {', '.join(keys[:3])} differs")
    for measure in measures:
        lacking = []
        for setting in grouped.settings:
            without = [run for run in setting.runs if not math.isfinite(values[measure.label][run.name])]
            if len(without) < len(setting.runs) or any(measure.metric in run.metrics for run in without):
                lacking += [run.name for run in without]
        notes += [f"{measure.label} is missing or null in {_few(lacking)}"] if lacking else []
    return notes


_RUN_FIELDS = ("name", "place", "state", "step", "max_steps", "reason", "trainer")


def comparison_json(comparison: Comparison, problems: Sequence[RlhfError] = ()) -> dict[str, object]:
    """Return the whole comparison as JSON values; NaN becomes null."""
    grouped, front = comparison.grouped, comparison.front
    return {
        "window": str(comparison.asked.window),
        "differs": [
            {"key": axis.key, "short": axis.short, "keys": list(axis.others), "values": list(dict.fromkeys(axis.texts))}
            for axis in [*grouped.axes, *grouped.seeds]
        ],
        "measures": [
            {name: getattr(measure, name) for name in ("label", "metric", "kind", "direction")}
            for measure in comparison.measures
        ],
        "settings": [
            {
                "name": setting.name,
                "values": dict(setting.values),
                "seeds": {seed: run.name for seed, run in setting.by_seed.items()},
                "estimates": {label: asdict(value) for label, value in comparison.estimates[setting.name].items()},
            }
            for setting in grouped.settings
        ],
        "runs": [
            {
                **{name: getattr(run, name) for name in _RUN_FIELDS},
                "differs": {key: texts[place] for key, texts in grouped.keys.items()},
                "values": {label: finite_or_none(numbers[run.name]) for label, numbers in comparison.values.items()},
            }
            for place, run in enumerate(comparison.runs)
        ],
        "no_verdict": comparison.no_verdict,
        "verdicts": [
            {
                "measure": verdict.measure.label,
                "direction": verdict.measure.direction,
                "by": verdict.key,
                "baseline": verdict.baseline,
                "text": verdict.text,
                "winner": verdict.winner,
                "values": {value: asdict(estimate) for value, estimate in verdict.arms.items()},
                "differences": [
                    {**asdict(pair), "degrees": max(0, len(pair.seeds) - 1), "seeds_needed": pair.seeds_needed}
                    for pair in verdict.differences
                ],
            }
            for verdict in comparison.verdicts
        ],
        "front": None if front is None else {"by": front.by, "best": front.best, "dominated": dict(front.dominated)},
        "total": comparison.no_total,
        "notes": comparison.notes,
        "left_out": [str(problem) for problem in problems],
    }
