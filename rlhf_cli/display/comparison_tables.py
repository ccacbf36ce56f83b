"""Print a comparison of runs, or draw it as one PNG."""

from __future__ import annotations

import importlib.util
import math
import os
import shlex
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rlhf_cli.analysis.comparison.comparison import Comparison
from rlhf_cli.analysis.comparison.frames import is_wandb
from rlhf_cli.analysis.comparison.logged_run import ABSENT, PRESENT, condition_of
from rlhf_cli.analysis.comparison.measures import HELD_OUT, RunMeasure
from rlhf_cli.analysis.comparison.settings import number_or_text
from rlhf_cli.analysis.comparison.verdicts import BETTER, WORSE
from rlhf_cli.display.terminal import STATE_STYLE, Column, cut_middle, plain_table, show_blocks
from rlhf_cli.errors import RlhfError, UserError
from rlhf_cli.numerics.intervals import Estimate
from rlhf_cli.plan.batches import count
from rlhf_cli.runs.run_status import FINISHED, RunGroup
from rlhf_cli.text.json_values import finite_or_none

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST_KEYS_A_ROW = 4
_LONGEST_NAME = 36
ON_FRONT, DOMINATED = "●", "○"


def _setting_columns(comparison: Comparison) -> list[Column]:
    """Return the Pareto marks, then one column per differing key, or only the setting names if there are many keys."""
    grouped, columns = comparison.grouped, list[Column]()
    if (front := comparison.front) is not None:
        names = [setting.name for setting in grouped.settings]
        marks = [ON_FRONT if name in front.best else DOMINATED if name in front.dominated else " " for name in names]
        columns.append(("", marks))
    if 0 < len(grouped.axes) <= _MOST_KEYS_A_ROW:
        values = ((axis.short, [setting.values[axis.key] for setting in grouped.settings]) for axis in grouped.axes)
        return [*columns, *values]
    names = []
    for setting in grouped.settings:
        runs = [*(run.name for run in setting.runs), *setting.left_out]
        name = setting.name if len(runs) > 1 and len(setting.name) <= _LONGEST_NAME else runs[0]
        more = f" +{len(runs) - 1}" if name != setting.name and runs[1:] else ""
        names.append(cut_middle(name, _LONGEST_NAME) + more)
    return [*columns, ("setting" if grouped.axes else "", names)]


def _column_title(measure: RunMeasure) -> str:
    return f"{measure.label} ↓" if measure.sign < 0 else measure.label


def shared_value(comparison: Comparison, measure: RunMeasure) -> float | None:
    """Return the value of a measure if all runs share it, else None. Always return None for a single setting."""
    settings = [setting for setting in comparison.grouped.settings if setting.runs]
    numbers = {comparison.values[measure.label][run.name] for setting in settings for run in setting.runs}
    return finite_or_none(numbers.pop()) if len(settings) > 1 and len(numbers) == 1 else None


def number_texts(numbers: Sequence[float]) -> list[str]:
    """Format a column of numbers with the decimals that the largest one needs. A non-finite number becomes `-`."""
    digits = _decimals(numbers)
    return [f"{number:.{digits}f}" if math.isfinite(number) else "-" for number in numbers]


def estimate_texts(estimates: Sequence[Estimate]) -> list[str]:
    """Format estimates as `0.667 ± 0.047`, or as the mean alone."""
    means = [math.nan if estimate.mean is None else estimate.mean for estimate in estimates]
    digits = _decimals(means)
    highs = [estimate.high for estimate in estimates]
    halves = ["" if high is None else f" ± {high - mean:.{digits}f}" for high, mean in zip(highs, means, strict=True)]
    return list(map(str.__add__, number_texts(means), halves))


def _decimals(numbers: Sequence[float]) -> int:
    """Return the number of decimals: three for numbers below ten, fewer for larger ones, more if all are tiny."""
    largest = max((abs(number) for number in numbers if math.isfinite(number)), default=0.0)
    if largest == 0.0:
        return 3
    magnitude = math.floor(math.log10(largest))
    return max(0, 3 - max(0, magnitude)) if largest >= 0.01 else min(7, 2 - magnitude)


_HASH = 12  # number of hash digits shown; enough to tell two hashes apart
_MOST_VALUES = 8
_MOST_KEYS = 12
_MOST_WITH = 3


def show_comparison(console: Console, comparison: Comparison, *, each_run: bool = False) -> None:
    """Print a whole comparison; with `each_run`, also print one line per run."""
    _show_what_differs(console, comparison)
    console.print()
    settings, front = comparison.grouped.settings, comparison.front
    shared = {measure.label: shared_value(comparison, measure) for measure in comparison.measures}
    heads, columns = _setting_columns(comparison), list[Column]()
    if any(len(setting.by_seed) > 1 for setting in settings):
        heads.append(("seeds", [str(len(setting.by_seed)) for setting in settings]))
    for measure in comparison.measures:
        estimates = [comparison.estimates[setting.name][measure.label] for setting in settings]
        if shared[measure.label] is None and any(estimate.mean is not None for estimate in estimates):
            columns.append((_column_title(measure), estimate_texts(estimates)))
    styles = ["dim" if front and setting.name in front.dominated else "" for setting in settings]
    show_blocks(console, heads, columns, styles)
    if same := [f"{label} {number_texts([number])[0]}" for label, number in shared.items() if number is not None]:
        _dim(console, f"equal in all runs: {', '.join(same)}")
    if each_run:
        console.print()
        runs = comparison.runs
        states = [(run.state, STATE_STYLE.get(run.state, "")) for run in runs]
        heads = [("run", [cut_middle(run.name, _LONGEST_NAME) for run in runs]), ("state", states)]
        columns = [("step", [str(run.step) for run in runs])]
        for measure in comparison.measures:
            numbers = [comparison.values[measure.label][run.name] for run in runs]
            if any(map(math.isfinite, numbers)):
                columns.append((_column_title(measure), number_texts(numbers)))
        show_blocks(console, heads, columns, ["" if run.state == FINISHED else "dim" for run in runs])
    if comparison.verdicts:
        verdict = comparison.verdicts[0]
        against = f", each against {verdict.baseline}" if verdict.baseline is not None else ""
        axis = next(axis for axis in comparison.grouped.axes if axis.short == verdict.key)
        others = [key for key in axis.others if key != axis.key]
        more = ", ..." if len(others) > _MOST_WITH else ""
        also = f" (and {', '.join(others[:_MOST_WITH])}{more})" if others else ""
        console.print(Text(f"\nverdict on {verdict.key}{also}{against}", style="bold"))
        for verdict in comparison.verdicts:
            console.print(_bulleted(verdict.text))
    elif comparison.no_verdict is not None:
        console.print(Text(f"\n{comparison.no_verdict}", style="bold"))
    if notes := list(filter(None, [*comparison.notes, comparison.no_total, _starting_models(comparison)])):
        console.print()
    for note in notes:
        console.print(_bulleted(note, "yellow"))
    _dim(console, _legend(comparison))


def show_other_groups(console: Console, where: str, groups: Sequence[RunGroup], shown: int) -> None:
    """Print which groups of runs are not in the table, and the command that compares all of them."""
    first, *others = groups
    left = [f"{older} older in {os.path.relpath(first.path)}"] if (older := len(first.folders) - shown) else []
    left += [f"{os.path.relpath(group.path)} ({count(len(group.folders), 'run')})" for group in others]
    if left:
        line = f"\nnot shown: {', '.join(left)}; rlhf compare {shlex.quote(f'{where}/*')} compares all"
        console.print(Text(line, style="dim"), soft_wrap=True)


def show_left_out(console: Console, problems: Sequence[RlhfError]) -> None:
    """Print why runs are missing from the table. Print nothing if all are there."""
    if problems:
        console.print(f"[yellow]left out: {count(len(problems), 'unreadable run')}[/]")
    for problem in problems:
        console.print(str(problem), markup=False, soft_wrap=True)


def _show_what_differs(console: Console, comparison: Comparison) -> None:
    grouped, places = comparison.grouped, [run.place for run in comparison.runs]
    if len(places) == 1:
        common = places[0]
    elif any(map(is_wandb, places)):
        projects = (place.rpartition("/")[0] if is_wandb(place) else "folders" for place in places)
        common = ", ".join(dict.fromkeys(projects))
    else:
        common = os.path.relpath(os.path.commonpath([os.path.abspath(place) for place in places]))
    where = "" if common == os.curdir else f"{common}: "
    settings = f", {len(grouped.settings)} settings" if len(grouped.settings) > 1 else ""
    console.print(Text(f"{where}{count(len(places), 'run')}{settings}", style="bold"), soft_wrap=True)
    if not grouped.keys:
        if len(places) > 1:
            _dim(console, "the configurations are equal")
        return
    names, rows = [run.name for run in comparison.runs], list[tuple[str, list[str]]]()
    for axis in [*grouped.axes, *grouped.seeds]:
        # The axis, then the keys that change with it; training conditions come first.
        others = sorted((key for key in axis.others if key != axis.key), key=lambda key: condition_of(key) is None)
        order = sorted(range(len(axis.texts)), key=lambda place: number_or_text(axis.texts[place]))
        for key, texts in {axis.key: axis.texts, **{f"  {key}": axis.others[key] for key in others}}.items():
            values = list(dict.fromkeys(texts[place] for place in order))
            if set(texts) == {PRESENT, ABSENT}:
                having = [name for name, text in zip(names, texts, strict=True) if text == PRESENT]
                few = ", ".join(having) if len(having) <= _MOST_WITH else f"{len(having)} of {len(names)} runs"
                values = [f"only in {few}"]
            rows.append((key, values))
    shown = [
        (key, ", ".join(values[:_MOST_VALUES]) + (", ..." if len(values) > _MOST_VALUES else ""))
        for key, values in rows[:_MOST_KEYS]
    ]
    console.print(plain_table(["", ""], rows=shown))
    if len(rows) > _MOST_KEYS:
        console.print(Text(f"and {', '.join(key.strip() for key, _ in rows[_MOST_KEYS:])}"))


def _starting_models(comparison: Comparison) -> str | None:
    """Return a note if runs with the same model name, and so equal configurations, started from different weights."""
    by_model: dict[str, list[str]] = {}
    for run in comparison.runs:
        if run.starting_model is not None:
            by_model.setdefault(run.starting_model, []).append(run.name)
    keys = [key for axis in [*comparison.grouped.axes, *comparison.grouped.seeds] for key in axis.others]
    if len(by_model) < 2 or any(key.startswith("model.") for key in keys):
        return None
    more = {model: f" and {len(names) - 1} more" if names[1:] else "" for model, names in by_model.items()}
    named = "; ".join(f"{model[:_HASH]} in {names[0]}{more[model]}" for model, names in by_model.items())
    return f"the runs name the same model but started from different weights ({named})"


def _legend(comparison: Comparison) -> str:
    parts = [comparison.asked.window.in_words]
    if any(measure.kind == HELD_OUT for measure in comparison.measures):
        parts.append("held out: the latest evaluation")
    if any(estimate.low is not None for by_label in comparison.estimates.values() for estimate in by_label.values()):
        parts.append("95 % intervals of the mean over seeds (Student's t)")
    if comparison.verdicts:
        number = comparison.comparisons
        together = f"all {number} intervals hold together (Bonferroni)" if number > 1 else "Student's t"
        parts.append(f"verdicts: differences paired by seed, {together}")
    if (front := comparison.front) is not None:
        parts.append(f"{ON_FRONT} on the front of {', '.join(front.by)}; {DOMINATED} another setting is better")
    if any(measure.sign < 0 and shared_value(comparison, measure) is None for measure in comparison.measures):
        parts.append("↓ less is better")
    return "; ".join(parts)


def _bulleted(text: str, style: str = "") -> Table:
    return plain_table(["", ""], rows=[(("-", style), (text, style))], gap=1)


def _dim(console: Console, text: str) -> None:
    console.print(Text(text, style="dim"))


_BLUE, _ORANGE, _GREY = "#3b6ea5", "#d98032", "#999999"
_COLUMNS = 3
_MOST_PANELS = 12
_LETTERS_A_COLUMN = 56  # number of caption letters that fit the width of one panel


def draw_comparison(comparison: Comparison, file: Path) -> None:
    """Draw a comparison into a PNG file. Raise UserError without matplotlib, or if no run has logged a metric."""
    if importlib.util.find_spec("matplotlib") is None:
        raise UserError("matplotlib is not installed (pip install 'rlhf-cli[plot]')", where="--png")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    measures = comparison.measures[:_MOST_PANELS]
    num_panels = len(measures) + len(comparison.verdicts)
    if not num_panels:
        raise UserError("no run logged a metric to draw")
    columns = min(_COLUMNS, num_panels)
    rows = math.ceil(num_panels / columns)
    settings, num_pairs = comparison.grouped.settings, [len(verdict.differences) for verdict in comparison.verdicts]
    height = 1.1 + 0.22 * max(len(comparison.estimates), *num_pairs, 4)
    seeds = max((len(setting.by_seed) for setting in settings), default=0)
    what = f"{len(comparison.runs)} runs, up to {seeds} seeds per setting, 95 % intervals"
    texts = [
        f"{what}; {comparison.asked.window.in_words}",
        f"differs: {', '.join(comparison.grouped.keys) or 'nothing'}",
        comparison.no_verdict or "",
    ]
    lines = [line for text in texts for line in textwrap.wrap(text, _LETTERS_A_COLUMN * columns)]
    figure = Figure(figsize=(4.6 * columns, 0.3 + 0.18 * len(lines) + height * rows), layout="constrained")
    FigureCanvasAgg(figure)
    panels = iter(figure.subplots(rows, columns, squeeze=False).flatten())
    for measure in measures:
        axes = next(panels)
        for row, setting in enumerate(settings):
            of_seeds = [comparison.values[measure.label][run.name] for run in setting.runs]
            axes.plot(of_seeds, [row + 0.18] * len(of_seeds), ".", color=_GREY, markersize=4, zorder=1)
            _dot(axes, row, comparison.estimates[setting.name][measure.label], _BLUE)
        title = measure.label if measure.sign >= 0 else f"{measure.label} (less is better)"
        _rows(axes, title, [setting.name for setting in settings])
    for verdict in comparison.verdicts:
        axes = next(panels)
        axes.axvline(0, color=_GREY, linewidth=0.8)
        for row, pair in enumerate(verdict.differences):
            _dot(axes, row, pair.difference, _ORANGE if pair.outcome in (BETTER, WORSE) else _BLUE)
        names = [f"{pair.value} - {pair.other}" for pair in verdict.differences]
        _rows(axes, f"{verdict.measure.label}: differences by {verdict.key}, paired by seed", names)
    for left in panels:
        left.set_axis_off()
    figure.suptitle("\n".join(lines), fontsize=10, parse_math=False)
    figure.savefig(file, dpi=120)


def _dot(axes: Axes, row: int, estimate: Estimate, colour: str) -> None:
    if estimate.mean is not None:
        axes.plot([estimate.mean], [row], "o", color=colour, markersize=5, zorder=3)
    if estimate.low is not None and estimate.high is not None:
        axes.plot([estimate.low, estimate.high], [row, row], color=colour, linewidth=1.6, zorder=2)


def _rows(axes: Axes, title: str, names: list[str]) -> None:
    axes.set_yticks(range(len(names)), names, fontsize=8, parse_math=False)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_title(title, fontsize=9, parse_math=False)
    axes.tick_params(axis="x", labelsize=8)
    axes.grid(axis="x", linewidth=0.3)
