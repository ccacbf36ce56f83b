"""Check whether values of a key were run under the same conditions: steps, rows per step, data and model.

A difference between runs of 12 and of 25 steps is no evidence about a weight that also changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rlhf_cli.comparison.logged_run import LoggedRun
from rlhf_cli.comparison.settings import Grouped
from rlhf_cli.comparison.what_differs import BATCH, DATA, MODEL, STEPS, Axis, condition_of, is_seed, value_text
from rlhf_cli.json_values import section

_ENDED = "finished at step"
_ROWS_A_STEP = "rows a step"
_TRL_BATCH = 8
"""TRL's default of `per_device_train_batch_size`."""

_MOST_NAMED, _MOST_VALUES = 4, 4
_NOT_SET = "not set"
_DIFFERS = {STEPS: "steps differ", BATCH: "batch differs", DATA: "data differ", MODEL: "model differs"}

Conditions = Mapping[tuple[str, str], str]
"""Map (condition, name of a key or of a fact) -> its value as text."""


def why_unfair(grouped: Grouped, axis: Axis, baseline: str | None = None) -> str | None:
    """Return why a verdict on a key would be unfair: the other conditions that differ; None if it is fair.

    Only compare runs of one seed that agree in every other key. If the key is itself a condition (a sweep over models),
    that condition may differ.
    """
    pairs = list(_compared(grouped, axis, baseline))
    if not pairs:
        others = [one.short for one in grouped.axes if one is not axis]
        same = " and ".join([", ".join(others[:-1]), others[-1]] if len(others) > 1 else others)
        return f"no verdict on {axis.short}: no two of its values were run with the same {same}" if others else None
    own = {condition_of(key) for key in axis.others}
    judged = own.pop() if len(own) == 1 else None
    conditions = {run.place: _conditions(run) for pair in pairs for run in pair}
    found: dict[str, dict[str, dict[str, None]]] = {}
    for first, second in pairs:
        for condition, name, texts in _differing(conditions[first.place], conditions[second.place]):
            if condition != judged and not (judged is not None and name == _ENDED):
                found.setdefault(condition, {}).setdefault(name, {}).update(dict.fromkeys(texts))
    if not found:
        return None
    said = [f"{_DIFFERS[one]} with it ({_in_words(found[one])})" for one in _DIFFERS if one in found]
    return f"no verdict on {axis.short}: {', '.join(said)}"


def conditions_apart(grouped: Grouped) -> list[str]:
    """Return the conditions in which settings differ, unless every setting was run under all of them."""
    of_axis = {axis.key: {condition_of(key) for key in axis.others} - {None} for axis in grouped.axes}
    found = {condition for conditions in of_axis.values() for condition in conditions}
    cells = {
        (
            tuple(one.values[key] for key in of_axis if of_axis[key]),
            tuple(one.values[key] for key in of_axis if not of_axis[key]),
        )
        for one in grouped.settings
    }
    if len(cells) == len({under for under, _ in cells}) * len({what for _, what in cells}):
        return []
    return [condition for condition in _DIFFERS if condition in found]


def why_not_one_of(grouped: Grouped) -> str:
    """Return why there is no verdict if several keys differ, and a `--by` key that would give one."""
    shorts = [axis.short for axis in grouped.axes]
    keys = f"no verdict: {len(shorts)} keys differ ({', '.join(shorts)})"
    reasons = [why_unfair(grouped, axis) for axis in grouped.axes]
    fair = [short for short, reason in zip(shorts, reasons, strict=True) if reason is None]
    return f"{keys}; --by {fair[0]} gives a verdict on one of them" if fair else f"{keys}; {reasons[0]}"


def _compared(grouped: Grouped, axis: Axis, baseline: str | None) -> Iterator[tuple[LoggedRun, LoggedRun]]:
    """Yield pairs of runs of one seed that differ only in the axis: the first, or the baseline, with each other one."""
    alike: dict[tuple[tuple[str, ...], str], dict[str, LoggedRun]] = {}
    for setting in grouped.settings:
        rest = tuple(text for key, text in setting.values.items() if key != axis.key)
        for seed, run in setting.by_seed.items():
            alike.setdefault((rest, seed), {})[setting.values[axis.key]] = run
    for by_value in alike.values():
        first = next(iter(by_value)) if baseline is None else baseline
        yield from ((by_value[first], run) for value, run in by_value.items() if value != first and first in by_value)


def _conditions(run: LoggedRun) -> Conditions:
    found = {
        (condition, key): value_text(value)
        for key, value in run.settings.items()
        if (condition := condition_of(key)) in (DATA, MODEL) and not is_seed(key)
    }
    steps = run.settings.get("trainer.args.max_steps")
    key = "max_steps" if isinstance(steps, int | float) and steps > 0 else "num_train_epochs"
    found[STEPS, f"trainer.args.{key}"] = value_text(run.settings.get(f"trainer.args.{key}"))
    if run.is_finished:
        found[STEPS, _ENDED] = str(run.step)
    if (rows := _rows_a_step(run)) is not None:
        found[BATCH, _ROWS_A_STEP] = str(rows)
    for name, of_file in section(run.provenance, "sha256").items():
        if name.startswith("data"):
            found[DATA, f"content of {name}"] = str(of_file)[:8]
    if run.starting_model is not None:
        found[MODEL, "weights it began with"] = run.starting_model[:8]
    return found


def _rows_a_step(run: LoggedRun) -> int | None:
    """Return the number of rows per optimizer step, or None if the number of processes is unknown."""
    processes = run.provenance.get("world_size")
    factors = [
        run.settings.get("trainer.args.per_device_train_batch_size", _TRL_BATCH),
        run.settings.get("trainer.args.gradient_accumulation_steps", 1),
        processes if processes is not None else run.settings.get("launch.processes", 1),
    ]
    rows = 1
    for factor in factors:
        if not isinstance(factor, int):
            return None
        rows *= factor
    return rows


def _differing(first: Conditions, second: Conditions) -> Iterator[tuple[str, str, Sequence[str]]]:
    """Yield (condition, name, both values); a fact (a hash, a count) that only one of them has is no difference."""
    for condition, name in {**first, **second}:
        texts = [one.get((condition, name), _NOT_SET) for one in (first, second)]
        if texts[0] != texts[1] and not (_NOT_SET in texts and " " in name):
            yield condition, name, texts


def _in_words(names: Mapping[str, Mapping[str, None]]) -> str:
    said = [
        f"{name} {', '.join(list(texts)[:_MOST_VALUES])}{', ...' if len(texts) > _MOST_VALUES else ''}"
        for name, texts in list(names.items())[:_MOST_NAMED]
    ]
    return "; ".join([*said, *([f"and {len(names) - _MOST_NAMED} more"] if len(names) > _MOST_NAMED else [])])
