"""Group runs that differ only in their seed, estimate each setting over its seeds, and say what forbids a verdict.

A difference between runs of 12 and of 25 steps is no evidence about a weight that also changed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rlhf_cli.analysis.comparison.logged_run import (
    BATCH,
    DATA,
    MODEL,
    STEPS,
    DifferingKey,
    LoggedRun,
    axes,
    condition_of,
    is_seed,
    value_text,
)
from rlhf_cli.errors import in_one_line
from rlhf_cli.numerics.intervals import Estimate, student
from rlhf_cli.runs.run_status import FINISHED, describe_state
from rlhf_cli.text.json_values import section


@dataclass(frozen=True)
class SettingRuns:
    """Runs that differ only in seeds.

    `name` shows the difference from other settings (`weight=0.5`), `values` maps an axis' key -> its value as text.
    `by_seed` maps seed -> the run that counts; `left_out` maps another run -> the reason.
    """

    name: str
    values: Mapping[str, str]
    by_seed: Mapping[str, LoggedRun]
    left_out: Mapping[str, str] = field(default_factory=dict)

    @property
    def runs(self) -> list[LoggedRun]:
        """Return the runs that count, in the order of their seeds."""
        return list(self.by_seed.values())


@dataclass(frozen=True)
class GroupedRuns:
    """All runs as settings. `axes` are the differences between settings, `seeds` the seed keys that differ.

    `up_to` is the last step of the curves to compare, if no run has finished: the last that all runs reached.
    """

    settings: list[SettingRuns]
    axes: list[DifferingKey]
    seeds: list[DifferingKey]
    runs: list[LoggedRun]
    up_to: int | None = None

    @property
    def keys(self) -> dict[str, tuple[str, ...]]:
        """Return every key that differs -> its value in each run, as text."""
        texts: dict[str, tuple[str, ...]] = {}
        for axis in [*self.axes, *self.seeds]:
            texts |= {axis.key: axis.texts, **axis.others}
        return texts


def group_over_seeds(runs: Sequence[LoggedRun]) -> GroupedRuns:
    """Return the runs as settings, in the order of their values.

    If any run has finished, only finished runs count, because a run that stopped at step 12 of 120 would lower its
    setting's mean. Otherwise all runs with log events count, up to the last step that all of them reached.
    """
    differing = axes(runs) if len(runs) > 1 else []
    axes_found, seeds = ([key for key in differing if key.is_seed == is_seed] for is_seed in (False, True))
    has_finished = any(run.state == FINISHED for run in runs)
    logged = [run for run in runs if run.metrics.num_events]
    up_to = None if has_finished or not logged else min(run.metrics.last_step for run in logged)
    places: dict[tuple[str, ...], list[int]] = {}
    for place in range(len(runs)):
        places.setdefault(tuple(axis.texts[place] for axis in axes_found), []).append(place)
    settings = []
    for texts, members in sorted(places.items(), key=lambda entry: [number_or_text(text) for text in entry[0]]):
        by_seed: dict[str, LoggedRun] = {}
        left_out: dict[str, str] = {}
        for place in sorted(members, key=lambda place: [number_or_text(axis.texts[place]) for axis in seeds]):
            run = runs[place]
            seed = "/".join(axis.texts[place] for axis in seeds) or str(run.settings.get("seed", "-"))
            if not run.metrics.num_events or (has_finished and run.state != FINISHED):
                left_out[run.name] = _describe_end(run)
            elif seed in by_seed:
                left_out[run.name] = f"the settings and the seed are those of {by_seed[seed].name}"
            else:
                by_seed[seed] = run
        by_axis = list(zip(axes_found, texts, strict=True))
        name = ",".join(f"{axis.short}={text}" for axis, text in by_axis) or "all runs"
        settings.append(SettingRuns(name, {axis.key: text for axis, text in by_axis}, by_seed, left_out))
    return GroupedRuns(settings, axes_found, seeds, list(runs), up_to)


def _describe_end(run: LoggedRun) -> str:
    """Return in one line how a run ended that does not count; `rlhf why` shows the rest."""
    of = f" of {run.max_steps}" if run.max_steps is not None else ""
    at = f" at step {run.step}{of}" if run.metrics.num_events else ", no log events"
    state, reason = describe_state(run.state, run.reason), in_one_line(run.reason or "")
    return state + at + (f": {reason}" if reason and state == run.state else "")


def number_or_text(text: str) -> tuple[int, float, str]:
    """Return a sort key for values: numbers by size, before words."""
    try:
        return 0, float(text), text
    except ValueError:
        return 1, 0.0, text


def estimate_over(values: Sequence[float]) -> Estimate:
    """Return Student's interval of the mean over seeds with finite values."""
    return student([value for value in values if math.isfinite(value)])


_ENDED = "finished at step"
_TRL_BATCH = 8  # TRL's default of `per_device_train_batch_size`

_NOT_SET = "not set"
_DIFFERS = {STEPS: "steps differ", BATCH: "batch differs", DATA: "data differ", MODEL: "model differs"}


def why_unfair(grouped: GroupedRuns, axis: DifferingKey, baseline: str | None = None) -> str | None:
    """Return why a verdict on a key would be unfair (another training condition differs), or None if it is fair."""
    # Pairs of runs of one seed that agree in every other key; the first has the baseline's value, or the first value.
    alike: dict[tuple[tuple[str, ...], str], dict[str, LoggedRun]] = {}
    for setting in grouped.settings:
        rest = tuple(text for key, text in setting.values.items() if key != axis.key)
        for seed, run in setting.by_seed.items():
            alike.setdefault((rest, seed), {})[setting.values[axis.key]] = run
    pairs: list[tuple[LoggedRun, LoggedRun]] = []
    for by_value in alike.values():
        first = next(iter(by_value)) if baseline is None else baseline
        pairs += [(by_value[first], run) for value, run in by_value.items() if value != first and first in by_value]
    if not pairs:
        others = ", ".join(other.short for other in grouped.axes if other is not axis)
        return f"no verdict on {axis.short}: no two of its values have runs with the same {others}" if others else None
    own = {condition_of(key) for key in axis.others}
    judged = own.pop() if len(own) == 1 else None
    differing: dict[tuple[str, str], dict[str, None]] = {}
    for sides in (tuple(map(_conditions, pair)) for pair in pairs):
        for condition, name in {**sides[0], **sides[1]}:
            texts = [side.get((condition, name), _NOT_SET) for side in sides]
            is_own = condition == judged or (judged is not None and name == _ENDED)
            is_unknown = _NOT_SET in texts and " " in name  # a hash or a count that only one run has
            if texts[0] != texts[1] and not (is_own or is_unknown):
                differing.setdefault((condition, name), {}).update(dict.fromkeys(texts))
    reasons = []
    for condition, text in _DIFFERS.items():
        if found := [f"{name} {', '.join(texts)}" for (of, name), texts in differing.items() if of == condition]:
            reasons.append(f"{text} with it ({'; '.join(found)})")
    return f"no verdict on {axis.short}: {', '.join(reasons)}" if reasons else None


def conditions_apart(grouped: GroupedRuns) -> list[str]:
    """Return the conditions in which settings differ beside another key, unless all combinations were run."""
    by_axis = {axis.key: {condition_of(key) for key in axis.others} - {None} for axis in grouped.axes}
    conditions_found = {condition for conditions in by_axis.values() for condition in conditions}
    under, what = (
        {tuple(setting.values[key] for key in by_axis if bool(by_axis[key]) == sets) for setting in grouped.settings}
        for sets in (True, False)
    )
    is_crossed = len(grouped.settings) == len(under) * len(what)
    return [] if is_crossed else [condition for condition in _DIFFERS if condition in conditions_found]


def _conditions(run: LoggedRun) -> dict[tuple[str, str], str]:
    """Return (condition, name of a key or of a fact) -> its value as text."""
    found = {
        (condition, key): value_text(value)
        for key, value in run.settings.items()
        if (condition := condition_of(key)) in (DATA, MODEL) and not is_seed(key)
    }
    steps = run.settings.get("trainer.args.max_steps")
    key = "max_steps" if isinstance(steps, int | float) and steps > 0 else "num_train_epochs"
    found[STEPS, f"trainer.args.{key}"] = value_text(run.settings.get(f"trainer.args.{key}"))
    if run.state == FINISHED:
        found[STEPS, _ENDED] = str(run.step)
    processes = run.provenance.get("world_size")
    factors = [
        run.settings.get("trainer.args.per_device_train_batch_size", _TRL_BATCH),
        run.settings.get("trainer.args.gradient_accumulation_steps", 1),
        processes if processes is not None else run.settings.get("launch.processes", 1),
    ]
    numbers = [factor for factor in factors if isinstance(factor, int)]
    if len(numbers) == len(factors):
        found[BATCH, "rows per step"] = str(math.prod(numbers))
    for name, sha256 in section(run.provenance, "sha256").items():
        if name.startswith("data"):
            found[DATA, f"content of {name}"] = str(sha256)[:8]
    if run.starting_model is not None:
        found[MODEL, "initial weights"] = run.starting_model[:8]
    return found
