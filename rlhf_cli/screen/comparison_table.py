"""Print a table of settings or runs, split into blocks of columns if the screen is narrow."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rlhf_cli.comparison.comparison import Comparison
from rlhf_cli.comparison.measures import Measure
from rlhf_cli.comparison.settings import Setting
from rlhf_cli.numerics.intervals import Estimate
from rlhf_cli.screen.one_line import cut_middle

_GAP = 2
_MOST_KEYS = 4
_LONGEST_NAME = 36
ON_FRONT, DOMINATED = "●", "○"
_STATE_STYLE = {"finished": "green", "failed": "red", "killed": "red", "preempted": "yellow"}


@dataclass(frozen=True)
class Column:
    """A table column with one text per row. A head column is repeated in every block."""

    title: str
    cells: list[str]
    is_head: bool = False
    is_number: bool = True

    @property
    def width(self) -> int:
        """Return the width of the widest text, in terminal cells."""
        return max(map(cell_len, [self.title, *self.cells]))


def show_settings(console: Console, comparison: Comparison) -> None:
    """Print one line per setting: its values, the number of seeds, and the mean and interval of each measure."""
    settings = comparison.grouped.settings
    front = comparison.front
    columns = _setting_columns(comparison)
    if any(len(setting.by_seed) > 1 for setting in settings):
        columns.append(Column("seeds", [str(len(setting.by_seed)) for setting in settings], is_head=True))
    shown = [measure for measure in comparison.measures if alike(comparison, measure) is None]
    for measure in shown:
        estimates = [comparison.estimates[setting.name][measure.label] for setting in settings]
        columns.append(Column(titled(measure), estimate_texts(estimates)))
    styles = ["dim" if front and setting.name in front.dominated else "" for setting in settings]
    show_blocks(console, columns, styles)


def show_runs(console: Console, comparison: Comparison) -> None:
    """Print one line per run: its name, its state and the value of each measure."""
    runs = comparison.runs
    columns = [
        Column("run", [cut_middle(run.name, _LONGEST_NAME) for run in runs], is_head=True, is_number=False),
        Column("state", [run.state for run in runs], is_number=False),
        Column("step", [str(run.step) for run in runs]),
    ]
    for measure in comparison.measures:
        numbers = [comparison.values[measure.label][run.name] for run in runs]
        columns.append(Column(titled(measure), number_texts(numbers)))
    show_blocks(console, columns, ["" if run.is_finished else "dim" for run in runs])


def show_blocks(console: Console, columns: Sequence[Column], styles: Sequence[str]) -> None:
    """Print columns as several tables below one another if they do not fit the width.

    Each table repeats the head columns.
    """
    head = [column for column in columns if column.is_head]
    taken = sum(column.width + _GAP for column in head)
    blocks: list[list[Column]] = [[]]
    room = console.width - taken
    for column in (one for one in columns if not one.is_head):
        if blocks[-1] and sum(one.width + _GAP for one in blocks[-1]) + column.width > room:
            blocks.append([])
        blocks[-1].append(column)
    for number, block in enumerate(blocks):
        if number:
            console.print()
        _show_block(console, [*head, *block], styles)


def _show_block(console: Console, columns: Sequence[Column], styles: Sequence[str]) -> None:
    table = Table(box=None, padding=(0, _GAP, 0, 0), pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(Text(column.title), justify="right" if column.is_number else "left", overflow="fold")
    for row, style in enumerate(styles):
        cells = [_cell(column, row, style) for column in columns]
        table.add_row(*cells)
    console.print(table)


def _cell(column: Column, row: int, style: str) -> Text:
    text = column.cells[row]
    return Text(text, _STATE_STYLE.get(text, style) if column.title == "state" else style)


def _setting_columns(comparison: Comparison) -> list[Column]:
    """Return the Pareto marks, then one column per differing key, or only the setting names if there are many keys."""
    grouped = comparison.grouped
    found = []
    if comparison.front is not None:
        marks = [_mark(comparison, setting) for setting in grouped.settings]
        found.append(Column("", marks, is_head=True, is_number=False))
    if 0 < len(grouped.axes) <= _MOST_KEYS:
        found += [
            Column(axis.short, [setting.values[axis.key] for setting in grouped.settings], is_head=True)
            for axis in grouped.axes
        ]
        return found
    names = [cut_middle(_by_run(setting) or setting.name, _LONGEST_NAME) for setting in grouped.settings]
    return [*found, Column("setting" if grouped.axes else "", names, is_head=True, is_number=False)]


def _by_run(setting: Setting) -> str | None:
    """Return the only run's name; the first run's name and a count if the setting's name is too long; else None."""
    names = [*(run.name for run in setting.runs), *setting.left_out]
    if len(names) == 1:
        return names[0]
    return f"{names[0]} +{len(names) - 1}" if len(setting.name) > _LONGEST_NAME else None


def _mark(comparison: Comparison, setting: Setting) -> str:
    front = comparison.front
    if front is None or setting.name in front.unplaced:
        return " "
    return ON_FRONT if setting.name in front.best else DOMINATED


def titled(measure: Measure) -> str:
    """Return the column title of a measure, with an arrow if less is better."""
    return f"{measure.label} ↓" if measure.sign < 0 else measure.label


def alike(comparison: Comparison, measure: Measure) -> float | None:
    """Return the value of a measure if all runs share it, else None. Always return None for a single setting."""
    settings = [one for one in comparison.grouped.settings if one.runs]
    numbers = {comparison.values[measure.label][run.name] for one in settings for run in one.runs}
    if len(settings) < 2 or len(numbers) != 1:
        return None
    (only,) = numbers
    return only if math.isfinite(only) else None


def number_texts(numbers: Sequence[float]) -> list[str]:
    """Format a column of numbers with the decimals that the largest one needs. A non-finite number becomes `-`."""
    digits = _decimals(numbers)
    return [f"{number:.{digits}f}" if math.isfinite(number) else "-" for number in numbers]


def estimate_texts(estimates: Sequence[Estimate]) -> list[str]:
    """Format estimates as `0.667 ± 0.047`, as `0.667 [0.62, 0.71]` if asymmetric, or as the mean alone."""
    digits = _decimals([one.mean for one in estimates if one.mean is not None])
    return [_estimate_text(one, digits) for one in estimates]


def _estimate_text(one: Estimate, digits: int) -> str:
    if one.mean is None:
        return "-"
    mean = f"{one.mean:.{digits}f}"
    if one.low is None or one.high is None:
        return mean
    if math.isclose(one.mean - one.low, one.high - one.mean, rel_tol=1e-6):
        return f"{mean} ± {one.high - one.mean:.{digits}f}"
    return f"{mean} [{one.low:.{digits}f}, {one.high:.{digits}f}]"


def _decimals(numbers: Sequence[float]) -> int:
    """Return the number of decimals: three for numbers below ten, fewer for larger ones, more if all are tiny."""
    largest = max((abs(number) for number in numbers if math.isfinite(number)), default=0.0)
    if largest == 0.0:
        return 3
    return min(
        7,
        max(0, 3 - max(0, math.floor(math.log10(largest))) if largest >= 0.01 else 2 - math.floor(math.log10(largest))),
    )
