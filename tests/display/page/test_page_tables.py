"""The page's table of settings: where numbers lie in their column."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlhf_cli.analysis.comparison.comparison import compare
from rlhf_cli.analysis.comparison.logged_run import read_runs
from rlhf_cli.display.page.curves import COMPONENTS, PlottedMetric, plots_of
from rlhf_cli.display.page.tables import setting_table
from rlhf_cli.numerics.intervals import student
from rlhf_cli.runs.run_folder import runs_in
from tests.support.logged_runs import configured, write_run, write_sweep


def test_where_a_number_lies_in_its_column(tmp_path: Path) -> None:
    """In per cent from the least end of all intervals to the greatest, also below zero."""
    ends = {0.0: [-0.9, -0.8, -0.7], 1.0: [-0.5, -0.4, -0.2]}
    write_sweep(tmp_path / "s", ends)
    table = setting_table(compare(read_runs(runs_in(tmp_path / "s"))[0]))
    column = [one.label for one in table.measures].index("correct")
    found = [student(values) for values in ends.values()]
    least, most = min(one.low or 0.0 for one in found), max(one.high or 0.0 for one in found)
    for line, one in zip(table.lines, found, strict=True):
        cell = line.cells[column]
        expected = [100 * ((end or 0.0) - least) / (most - least) for end in (one.mean, one.low, one.high)]
        assert [cell.at, cell.low, cell.high] == pytest.approx(expected, abs=0.051)
        assert cell.mean == f"{one.mean:.3f}"


def test_the_interval_that_an_evaluation_logged_is_drawn_from_its_low_to_its_high_end(tmp_path: Path) -> None:
    name = "eval_greedy/total"
    curves = {name: [0.4, 0.6], f"{name}/low": [0.3, 0.5], f"{name}/high": [0.5, 0.8]}
    runs, _ = read_runs([write_run(tmp_path / "a", configured(), curves)])
    (plot,) = plots_of(runs, [], [PlottedMetric(name, "total", COMPONENTS)])
    assert plot.lines == {0: [0.4, 0.6]}
    assert plot.intervals == {0: ([0.3, 0.5], [0.5, 0.8])}
