"""Build the two trade-off plots: the Pareto front, and parallel coordinates of the swept keys."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations

from rlhf_cli.comparison.comparison import Comparison
from rlhf_cli.comparison.measures import COMPONENT, COST, HELD_OUT, Measure
from rlhf_cli.comparison.pareto_front import MOST_MEASURES, pareto_front
from rlhf_cli.comparison.settings import Setting
from rlhf_cli.report.page.embedding import rounded

_MOST_MEASURES_OFFERED = 8
_MOST_KEYS, _MOST_COMPONENTS = 6, 6
_MOST_TICKS = 7


def front_of(comparison: Comparison) -> dict[str, object] | str:
    """Return the data to draw the Pareto front of any two or three measures, or why there is none.

    `best` maps measure indices, joined by commas in ascending order, -> the indices of the non-dominated settings.
    """
    settings = comparison.grouped.settings
    measures = [one for one in comparison.measures if one.kind == COMPONENT]
    measures += [one for one in comparison.measures if one.kind in (COST, HELD_OUT) and one.sign]
    measures = [one for one in measures if _has_values(comparison, one)][:_MOST_MEASURES_OFFERED]
    if len(settings) < 2:
        return "There is one setting: nothing is traded against anything."
    if len(measures) < 2:
        return "A front is over two or three measures that have a direction, and the runs have fewer in common."
    places = {run.name: place for place, run in enumerate(comparison.runs)}
    num_components = sum(one.kind == COMPONENT for one in measures)
    return {
        "measures": [{"label": one.label, "sign": one.sign or 1, "direction": one.direction} for one in measures],
        "settings": [
            {"setting": place, **_estimates(comparison, setting, measures)} for place, setting in enumerate(settings)
        ],
        "runs": [
            {"run": places[run.name], "values": [rounded(comparison.values[one.label][run.name]) for one in measures]}
            for setting in settings
            for run in (setting.runs if len(setting.runs) > 1 else [])
        ],
        "best": dict(_fronts(comparison, measures)),
        "startsWithThree": num_components >= MOST_MEASURES,
    }


def _has_values(comparison: Comparison, measure: Measure) -> bool:
    return any(of[measure.label].mean is not None for of in comparison.estimates.values())


def _estimates(comparison: Comparison, setting: Setting, measures: Sequence[Measure]) -> dict[str, object]:
    found = [comparison.estimates[setting.name][one.label] for one in measures]
    return {
        "values": [rounded(one.mean) for one in found],
        "low": [rounded(one.low) for one in found],
        "high": [rounded(one.high) for one in found],
    }


def _fronts(comparison: Comparison, measures: Sequence[Measure]) -> Iterator[tuple[str, list[int]]]:
    places = {setting.name: place for place, setting in enumerate(comparison.grouped.settings)}
    for size in range(2, MOST_MEASURES + 1):
        for chosen in combinations(range(len(measures)), size):
            some = [measures[number] for number in chosen]
            means = {
                name: [math.nan if (mean := of[one.label].mean) is None else mean for one in some]
                for name, of in comparison.estimates.items()
            }
            front = pareto_front([one.label for one in some], [one.sign or 1 for one in some], means)
            yield ",".join(map(str, chosen)), [places[name] for name in front.best]


def parallel_of(comparison: Comparison) -> dict[str, object] | str:
    """Return the axes of the parallel coordinates (swept keys, then components), or why there are none.

    Each axis has its own scale from its minimum to its maximum. Per setting, `heights` holds its position on the axis
    in [0, 1] (None if it has no value), and `texts` its value there.
    """
    settings = comparison.grouped.settings
    if len(settings) < 2:
        return "There is one setting: no weight or other key was swept."
    axes = [
        _axis(axis.short, [setting.values[axis.key] for setting in settings])
        for axis in comparison.grouped.axes[:_MOST_KEYS]
    ]
    measures = [one for one in comparison.measures if one.kind == COMPONENT] or comparison.measures
    for measure in measures[:_MOST_COMPONENTS]:
        means = [comparison.estimates[setting.name][measure.label].mean for setting in settings]
        if any(mean is not None for mean in means):
            axes.append(_scale(measure.label, means, [_text(mean) for mean in means]))
    return {"axes": axes} if len(axes) > 1 else "The runs have neither a key that differs nor a measure in common."


def _axis(label: str, texts: Sequence[str]) -> dict[str, object]:
    """Return the axis of a key: a numeric scale if all its values are numbers, else one position per value."""
    try:
        return _scale(label, [float(text) for text in texts], texts)
    except ValueError:
        places: Mapping[str, int] = {text: place for place, text in enumerate(dict.fromkeys(texts))}
        return _scale(label, [float(places[text]) for text in texts], texts)


def _scale(label: str, values: Sequence[float | None], texts: Sequence[str]) -> dict[str, object]:
    known = [value for value in values if value is not None and math.isfinite(value)]
    low, high = (min(known), max(known)) if known else (0.0, 0.0)
    heights = [
        None if value is None or not math.isfinite(value) else 0.5 if high == low else (value - low) / (high - low)
        for value in values
    ]
    by_height = {height: text for height, text in zip(heights, texts, strict=True) if height is not None}
    ticks = sorted(by_height.items())
    if len(ticks) > _MOST_TICKS:
        ticks = [ticks[0], ticks[-1]]
    apart: list[tuple[float, str]] = []
    for height, text in ticks:  # skip a tick that would overlap the one below, but keep the highest
        if apart and height - apart[-1][0] < 0.07:
            if height < 1:
                continue
            apart.pop()
        apart.append((height, text))
    return {"label": label, "heights": [rounded(height) for height in heights], "texts": list(texts), "ticks": apart}


def _text(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"
