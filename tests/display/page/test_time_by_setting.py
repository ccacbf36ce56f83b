"""The page's table of where the time went: of settings whose runs have logged shares that are given."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlhf_cli.analysis.comparison.comparison import compare
from rlhf_cli.analysis.comparison.logged_run import read_runs
from rlhf_cli.display.page.page_content import write_report
from rlhf_cli.display.page.tables import TimeRow, time_by_setting
from tests.support.logged_runs import configured, write_run


def shares(generation: float, elapsed_s: float = 2.0, **more: float) -> dict[str, list[float]]:
    curves = {"time/elapsed_s": [elapsed_s] * 4, "time/share/generation": [generation] * 4}
    curves |= {"time/share/rest": [1 - generation] * 4, "rewards/correct/mean": [0.5] * 4}
    return curves | {name: [value] * 4 for name, value in more.items()}


def test_a_column_is_the_mean_of_a_settings_runs(tmp_path: Path) -> None:
    """Shares of 0.2 and 0.4 have a mean of 30 %, 4 x 2 s and 4 x 4 s in 4 steps are 2 s and 4 s a step, in the mean 3.
    Of the second setting nothing was timed.
    """
    padded = {"passes/slots": 6.0, "passes/tokens": 4.0}
    runs = [
        write_run(tmp_path / "a", configured(0.0, 0), shares(0.2, **padded)),
        write_run(tmp_path / "b", configured(0.0, 1), shares(0.4, elapsed_s=4.0, **padded)),
        write_run(tmp_path / "c", configured(1.0, 0), {"rewards/correct/mean": [0.5] * 4}),
    ]
    table = time_by_setting(compare(read_runs(runs)[0]).grouped.settings)
    assert table is not None
    assert table.rows == [
        TimeRow("the rest", [pytest.approx(70.0), None]),
        TimeRow("generation", [pytest.approx(30.0), None]),
    ]
    assert table.seconds_a_step == [3.0, None]
    assert table.slots_per_token == [1.5, None]
    written = write_report([run.path for run in runs], tmp_path / "page.html").read_text(encoding="utf-8")
    assert '<span class="time-bar" style="--share:30.0%">30.0 %</span>' in written


def test_runs_that_timed_nothing_have_no_table(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", configured(), {"rewards/correct/mean": [0.5] * 4})
    assert time_by_setting(compare(read_runs([run])[0]).grouped.settings) is None
    page = write_report([run.path], tmp_path / "page.html")
    assert "No run that counts has timed its phases" in page.read_text(encoding="utf-8")
