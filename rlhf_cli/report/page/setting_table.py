"""Build the table of settings: one line per setting, with each measure, its interval and its position in the column."""

from __future__ import annotations

from dataclasses import dataclass

from rlhf_cli.comparison.comparison import Comparison
from rlhf_cli.comparison.measures import Measure
from rlhf_cli.comparison.settings import Setting
from rlhf_cli.comparison.verdicts import decimals, decimals_of
from rlhf_cli.numerics.intervals import Estimate

_MOST_COLUMNS = 16


@dataclass(frozen=True)
class Cell:
    """A number with its interval as text, and their positions in the column in per cent (None if unknown)."""

    mean: str
    interval: str
    at: float | None = None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Line:
    """A line of the table for one setting. `place` is its index; `seeds` is the number of seeds."""

    place: int
    name: str
    seeds: int
    cells: list[Cell]
    left_out: dict[str, str]


@dataclass(frozen=True)
class SettingTable:
    """The table: its columns, its lines, and how many measures did not fit."""

    measures: list[Measure]
    lines: list[Line]
    num_more: int


def setting_table(comparison: Comparison) -> SettingTable:
    """Return the table of a comparison's settings, in their order."""
    measures = comparison.measures[:_MOST_COLUMNS]
    columns = [
        [comparison.estimates[one.name][measure.label] for one in comparison.grouped.settings] for measure in measures
    ]
    cells = [_column(column) for column in columns]
    lines = [
        Line(place, shown_name(one), len(one.by_seed), [column[place] for column in cells], dict(one.left_out))
        for place, one in enumerate(comparison.grouped.settings)
    ]
    return SettingTable(measures, lines, len(comparison.measures) - len(measures))


def shown_name(setting: Setting) -> str:
    """Return a setting's display name. If it has only one run with a shorter name, return the run's name."""
    names = [run.name for run in setting.runs] + list(setting.left_out)
    return min(setting.name, names[0], key=len) if len(names) == 1 else setting.name


def _column(estimates: list[Estimate]) -> list[Cell]:
    """Return the cells of a measure with equal decimals: enough for the widest interval and for the largest mean."""
    ends = [end for one in estimates for end in (one.low, one.mean, one.high) if end is not None]
    least, most = (min(ends), max(ends)) if ends else (0.0, 0.0)
    halves = [(one.high - one.low) / 2 for one in estimates if one.low is not None and one.high is not None]
    means = [abs(one.mean) for one in estimates if one.mean is not None]
    digits = max(decimals(max(halves)) if halves else 0, decimals_of(max(means, default=0.0)))

    def at(value: float | None) -> float | None:
        return None if value is None or most == least else round(100 * (value - least) / (most - least), 1)

    return [
        Cell(
            "–" if one.mean is None else f"{one.mean:.{digits}f}",
            f"[{one.low:.{digits}f}, {one.high:.{digits}f}]" if one.low is not None and one.high is not None else "",
            *(at(one.mean), at(one.low), at(one.high)),
        )
        for one in estimates
    ]
