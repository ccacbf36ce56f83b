"""The page shows what was logged: thinned curves, bands over seeds, and the names of unreadable files."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from rlhf_cli.analysis.comparison.comparison import compare
from rlhf_cli.analysis.comparison.logged_run import read_runs
from rlhf_cli.display.page import page_data
from rlhf_cli.display.page.page_content import report_at_the_end
from rlhf_cli.display.page.page_data import COMPONENTS, plots_of
from rlhf_cli.errors import RunError
from rlhf_cli.runs.run_folder import runs_in
from tests.display.page.reported_runs import write_report, write_reported
from tests.support.logged_runs import configured, write_run

LOSS = {"loss": COMPONENTS}


def test_a_curve_is_thinned_to_means_of_neighbours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 100 steps 25 points: the values 0 to 99 have the means 1.5, 5.5, ...; 98 is logged as null."""
    monkeypatch.setattr(page_data, "_MOST_POINTS", 25)
    monkeypatch.setattr(page_data, "_LEAST_POINTS", 25)
    curves = {"a": [None if step == 98 else float(step) for step in range(100)], "b": [2.0] * 100}
    folders = [write_run(tmp_path / name, configured(), {"loss": curve}) for name, curve in curves.items()]
    (plot,) = plots_of(read_runs(folders)[0], [], LOSS)
    assert (plot["events"], plot["x"]) == (4, list(range(3, 101, 4)))
    means = [4 * place + 1.5 for place in range(24)] + [(96 + 97 + 99) / 3]
    assert plot["lines"]["0"] == pytest.approx(means, rel=1e-3)
    assert plot["lines"]["1"] == [2] * 25


def test_the_band_is_students_interval_over_seeds(tmp_path: Path) -> None:
    ends = [0.3, 0.5, 0.9]
    for seed, end in enumerate(ends):
        write_run(tmp_path / f"{seed}", configured(0.1, seed), {"loss": [end, 2 * end]})
    runs, _ = read_runs(runs_in(tmp_path))
    (plot,) = plots_of(runs, compare(runs).grouped.settings, LOSS)
    low, high = stats.t.interval(0.95, 2, np.mean(ends), stats.sem(ends))
    mean, lows, highs = plot["bands"]["0"]
    assert (mean[0], lows[0], highs[0]) == pytest.approx((np.mean(ends), low, high), rel=1e-3)
    assert mean[1] == pytest.approx(2 * np.mean(ends), rel=1e-3)


def test_what_cannot_be_read_is_named_and_the_rest_is_shown(tmp_path: Path) -> None:
    write_reported(tmp_path)
    (tmp_path / "weight=0,seed=0" / "metrics.jsonl").write_text('{"step": 1, "time_s": 0}\nnonsense\n')
    (tmp_path / "weight=0,seed=1" / "completions" / "completions_00001.parquet").write_text("cut")
    html = write_report(tmp_path, tmp_path / "report.html").read_text(encoding="utf-8")
    assert "metrics.jsonl cannot be read" in html
    assert "completions_00001.parquet cannot be read" in html
    assert len(re.findall(r'id="run-\d"', html)) == 4


def test_a_report_that_fails_fails_nothing_else(tmp_path: Path) -> None:
    write_reported(tmp_path / "sweep")
    assert report_at_the_end(tmp_path / "sweep") == f"report: {tmp_path / 'sweep' / 'report.html'}"
    write_run(tmp_path / "new" / "run", configured(0.5, 0), {}, state="failed")  # before its first log event
    assert report_at_the_end(tmp_path / "new").startswith("report: ")
    (tmp_path / "empty").mkdir()
    assert report_at_the_end(tmp_path / "empty").startswith("no report: ")
    with pytest.raises(RunError):
        write_report(tmp_path / "empty", tmp_path / "report.html")
