"""Runs in a notebook."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import rlhf_cli
from rlhf_cli.analysis.comparison.comparison import ComparisonOptions
from rlhf_cli.errors import RunError
from scripts import structure
from tests.support.logged_runs import configured, write_run, write_sweep


def test_a_row_a_run_and_a_row_an_event(place: Path) -> None:
    curves = {"reward": [0.1, 0.2, 0.3], "late": [None, 0.5]}
    write_run(place / "runs" / "a", configured(0.0), curves)
    write_run(place / "runs" / "b", configured(0.5), {"reward": [0.4]}, state="failed")
    loaded = rlhf_cli.load_runs("runs")
    assert list(loaded.runs.index) == ["weight=0", "weight=0.5"]
    assert list(loaded.runs["rewards.brevity.weight"]) == [0.0, 0.5]
    assert list(loaded.runs["state"]) == ["finished", "failed"]
    assert list(loaded.metrics.index) == [("weight=0", 1), ("weight=0", 2), ("weight=0", 3), ("weight=0.5", 1)]
    assert list(loaded.metrics["reward"]) == [0.1, 0.2, 0.3, 0.4]
    assert list(loaded.metrics["late"].isna()) == [True, False, True, True]
    assert set(loaded.metrics.dtypes.astype(str)) == {"float64"}


def test_two_events_of_one_step_are_two_rows(place: Path) -> None:
    run = write_run(place / "a", configured(), {"reward": [0.1, 0.2]})
    with run.metrics.open("a") as stream:
        stream.write('{"step": 2, "time_s": 1, "eval_loss": 0.7}\n{"step": 2, "time_s": 1, "reward": 0.9}\n')
    metrics = rlhf_cli.load_runs(run.path).metrics
    assert list(metrics["reward"]) == [0.1, 0.2, 0.9]
    assert list(metrics["eval_loss"].dropna()) == [0.7]


def test_only_some_metrics_and_what_compare_says(place: Path) -> None:
    write_sweep(place / "sweep", {0.0: [0.5, 0.6], 0.5: [0.7, 0.9]})
    loaded = rlhf_cli.load_runs("sweep", metrics=["rewards/correct/mean"])
    assert list(loaded.metrics) == ["rewards/correct/mean"]
    assert len(loaded.compare(ComparisonOptions(on=("correct",))).verdicts) == 1


def test_a_run_that_cannot_be_read_is_a_problem_and_no_end(place: Path) -> None:
    write_run(place / "runs" / "a", configured(), {"reward": [0.1]})
    write_run(place / "runs" / "b", configured(), {"reward": [0.1]}).metrics.write_text("x\n[]\n")
    loaded = rlhf_cli.load_runs()
    assert len(loaded.runs) == 1
    assert "metrics.jsonl cannot be read" in str(loaded.problems[0])
    with pytest.raises(RunError):
        rlhf_cli.load_runs("nowhere")


def test_to_import_the_package_imports_no_pandas() -> None:
    program = "import sys, rlhf_cli; print([name for name in ('pandas', 'numpy', 'scipy') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_example_of_the_page_runs(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every block of Python in docs/how-to/compare.md, in order, on a sweep as the page has it."""
    text = (structure.ROOT / "docs" / "how-to" / "compare.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    assert blocks
    ends = {0.0: [0.6, 0.7, 0.65], 0.1: [0.62, 0.71, 0.68], 0.5: [0.5, 0.6, 0.52]}
    write_sweep(place / "runs" / "quickstart" / "weights", ends, num_steps=30)
    names: dict[str, object] = {}
    for block in blocks:
        exec(block, names)
    assert "0.5" in capsys.readouterr().out
