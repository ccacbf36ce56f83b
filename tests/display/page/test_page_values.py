"""What the page shows is what was logged: curves, bands, chosen completions, the front, and what is left out."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from rlhf_cli.analysis.comparison.comparison import compare
from rlhf_cli.analysis.comparison.logged_run import read_runs
from rlhf_cli.display.page import curves as plotted_curves
from rlhf_cli.display.page.curves import COMPONENTS, PlottedMetric, front_of, plots_of
from rlhf_cli.display.page.first_and_last_answers import first_and_last_answers
from rlhf_cli.display.page.page_content import report_at_the_end, write_report
from rlhf_cli.errors import RunError
from rlhf_cli.runs.run_folder import in_training, runs_in
from tests.display.page.reported_runs import write_reported
from tests.support.logged_runs import configured, write_run

LOSS = PlottedMetric("loss", "loss", COMPONENTS)


def test_a_curve_is_thinned_to_means_of_neighbours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 100 steps 25 points: the values 0 to 99 have the means 1.5, 5.5, ...; 98 is logged as null."""
    monkeypatch.setattr(plotted_curves, "_MOST_POINTS", 25)
    monkeypatch.setattr(plotted_curves, "_LEAST_POINTS", 25)
    values = [None if step == 98 else float(step) for step in range(100)]
    folders = [
        write_run(tmp_path / name, configured(), {"loss": curve}) for name, curve in (("a", values), ("b", [2.0] * 100))
    ]
    runs, _ = read_runs(folders)
    (plot,) = plots_of(runs, [], [LOSS])
    assert plot.events == 4
    assert plot.x == list(range(3, 101, 4))
    assert plot.lines[0] == pytest.approx([4 * place + 1.5 for place in range(24)] + [(96 + 97 + 99) / 3], rel=1e-3)
    assert plot.lines[1] == [2] * 25


def test_the_band_is_students_interval_over_seeds(tmp_path: Path) -> None:
    ends = [0.3, 0.5, 0.9]
    for seed, end in enumerate(ends):
        write_run(tmp_path / f"{seed}", configured(0.1, seed), {"loss": [end, 2 * end]})
    runs, _ = read_runs(runs_in(tmp_path))
    (plot,) = plots_of(runs, compare(runs).grouped.settings, [LOSS])
    low, high = stats.t.interval(0.95, 2, np.mean(ends), stats.sem(ends))
    mean, lows, highs = plot.bands[0]
    assert (mean[0], lows[0], highs[0]) == pytest.approx((np.mean(ends), low, high), rel=1e-3)
    assert mean[1] == pytest.approx(2 * np.mean(ends), rel=1e-3)


def test_the_front_is_of_all_pairs_and_a_dominated_setting_is_on_none(tmp_path: Path) -> None:
    """(correct, brevity): 0 has (0.9, 0.2), 1 has (0.2, 0.9), 2 has (0.1, 0.1), which both others beat in both."""
    for weight, values in {0.0: (0.9, 0.2), 1.0: (0.2, 0.9), 2.0: (0.1, 0.1)}.items():
        curves = {"rewards/correct/mean": [values[0]], "rewards/brevity/mean": [values[1]], "kl": [1 - weight / 10]}
        write_run(tmp_path / f"{weight}", configured(weight), curves)
    comparison = compare(read_runs(runs_in(tmp_path))[0])
    front = front_of(comparison)
    assert isinstance(front, dict)
    labels = [measure["label"] for measure in front["measures"]]  # type: ignore[attr-defined]
    assert labels == ["correct", "brevity", "kl"]
    assert front["best"] == {"0,1": [0, 1], "0,2": [0, 1, 2], "1,2": [1, 2], "0,1,2": [0, 1, 2]}


def test_what_cannot_be_read_is_named_and_the_rest_is_shown(tmp_path: Path) -> None:
    write_reported(tmp_path)
    (tmp_path / "weight=0,seed=0" / "metrics.jsonl").write_text('{"step": 1, "time_s": 0}\nnonsense\n')
    (tmp_path / "weight=0,seed=1" / "completions" / "completions_00001.parquet").write_text("cut")
    html = write_report([tmp_path], tmp_path / "report.html").read_text(encoding="utf-8")
    assert "metrics.jsonl cannot be read" in html
    assert "completions_00001.parquet cannot be read" in html
    assert len(re.findall(r'id="run-\d"', html)) == 4


def test_a_report_that_fails_fails_nothing_else(tmp_path: Path) -> None:
    write_reported(tmp_path / "sweep")
    assert report_at_the_end(tmp_path / "sweep") == f"report: {tmp_path / 'sweep' / 'report.html'}"
    (tmp_path / "empty").mkdir()
    assert report_at_the_end(tmp_path / "empty").startswith("no report: no run lies below")
    with pytest.raises(RunError):
        write_report([tmp_path / "empty"], tmp_path / "report.html")


def test_held_out_answers_before_and_after(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", configured(0.0, 0), {"loss": [1.0] * 3})
    folder = in_training(run)
    folder.mkdir(parents=True)
    asked = [{"role": "user", "content": "3 + 4 ="}, {"role": "assistant", "content": "7"}]
    for step, answer in ((0, "it is <b>9</b>"), (5, "8"), (10, "22\u2028")):
        rows = [
            {"prompt": [*asked, {"role": "user", "content": "17 + 5 ="}], "completion": answer, "part": "greedy"},
            {"prompt": [*asked, {"role": "user", "content": "17 + 5 ="}], "completion": "sampled", "part": "sampled"},
        ]
        rewards = {"correct": float(answer.strip() == "22"), "form": None}
        lines = [json.dumps({**row, "rewards": rewards}, ensure_ascii=False) for row in rows]
        (folder / f"step-{step}.completions.jsonl").write_text("\n".join(lines))
    shown = first_and_last_answers(run)
    assert shown is not None
    assert shown.steps == (0, 10)
    assert [(one.prompt, one.answers) for one in shown.prompts] == [
        ("17 + 5 =", [("it is <b>9</b>", "correct 0, form –"), ("22\u2028", "correct 1, form –")])
    ]
    html = write_report([tmp_path], tmp_path / "report.html").read_text(encoding="utf-8")
    assert "it is &lt;b&gt;9&lt;/b&gt;" in html
    assert "sampled" not in html.partition("Held-out answers, before and after")[2].partition("</section>")[0]
    for broken in (
        '{"prompt": "cut',
        "[1]",
        '{"prompt": 1}',
        '{"prompt": 1, "part": "greedy", "completion": 1, "rewards": 2}',
    ):
        (folder / "step-10.completions.jsonl").write_text(broken)
        assert first_and_last_answers(run) is None
    (folder / "step-10.completions.jsonl").unlink()
    (folder / "step-5.completions.jsonl").unlink()
    assert first_and_last_answers(run) is None  # one evaluation has no before
