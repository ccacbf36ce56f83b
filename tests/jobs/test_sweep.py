"""A sweep: one folder, one run for every value, one table, and a failed job that stops nobody."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlhf_cli.cli import main
from rlhf_cli.runs.metrics_file import read_metrics, series
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.run_status import read_status
from tests.support.small_runs import SMALL


def sweep(workplace: Path, *overrides: str) -> tuple[int, list[RunFolder]]:
    code = main(["train", "-m", *SMALL, "run.name=swept", *overrides])
    folder = workplace / "runs" / "quickstart" / "swept"
    return code, [RunFolder(path.parent) for path in sorted(folder.glob("*/config.yaml"))]


def test_three_weights_are_three_runs_and_a_table_and_compare_takes_their_folder(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, runs = sweep(workplace, "rewards.brevity.weight=0,0.1,0.5")
    assert code == 0
    assert [run.read_config()["rewards"]["brevity"]["weight"] for run in runs] == [0, 0.1, 0.5]
    assert [read_status(run).state for run in runs] == ["finished"] * 3
    out = capsys.readouterr().out
    table = out[out.index("runs/quickstart/swept/\n") :]
    assert "brevity.weight" in table
    assert table.count("finished") == 3
    assert out.rstrip().splitlines()[-1].startswith("sweep folder: ")
    sweep_json = json.loads((runs[0].path.parent / "sweep.json").read_text())
    assert sweep_json["overrides"][-1] == "rewards.brevity.weight=0,0.1,0.5"
    assert not (runs[0].path.parent / "status.json").exists()
    assert main(["compare", "runs/quickstart/swept"]) == 0
    out = capsys.readouterr().out
    assert out.count("finished") == 3
    for column in ("brevity.weight", "total", "correct", "format"):
        assert column in out


def test_a_job_of_a_sweep_equals_the_same_run_alone(workplace: Path, train) -> None:
    """Several runs in one process leak nothing into one another: the last equals a run of its own."""
    _, runs = sweep(workplace, "seed=1,2,3")
    _, alone = train("seed=3")
    assert series(read_metrics(runs[2].metrics), "grad_norm") == series(read_metrics(alone.metrics), "grad_norm")
    assert series(read_metrics(runs[0].metrics), "grad_norm") != series(read_metrics(alone.metrics), "grad_norm")


@pytest.mark.fault(28)
def test_a_job_that_fails_leaves_the_others_alone(workplace: Path, capsys) -> None:
    (workplace / "mine.py").write_text(
        "def picky(completions, *, limit, **kwargs):\n"
        "    if limit == 2:\n        raise ValueError('two is too many')\n"
        "    return [0.0] * len(completions)\n"
    )
    code, runs = sweep(workplace, "rewards.mine.fn=./mine.py:picky", "rewards.mine.args.limit=1,2,3")
    assert code == 1
    assert [read_status(run).state for run in runs] == ["finished", "failed", "finished"]
    assert "two is too many" in capsys.readouterr().out


@pytest.mark.parametrize("typo", ["rewards.brevity.wieght=0,1", "seed=1,x", "trainer=grpo,rlo"])
def test_a_typo_is_told_once_and_before_any_job(workplace: Path, capsys, typo: str) -> None:
    code, runs = sweep(workplace, typo)
    assert code == 2
    assert runs == []
    assert not (workplace / "runs").exists()
    assert capsys.readouterr().err.count("where:") == 1
