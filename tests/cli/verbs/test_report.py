"""`rlhf report` prints the path and contents of the page, and refuses mistakes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlhf_cli.cli import main
from tests.display.page.reported_runs import write_reported


@pytest.fixture
def sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_reported(tmp_path / "runs" / "demo" / "sweep")
    return tmp_path / "runs" / "demo" / "sweep"


def test_the_report_is_in_the_named_folder(sweep: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "runs/demo/sweep", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["path"], said["runs"], said["settings"]) == ("runs/demo/sweep/report.html", 5, 2)
    assert said["num_bytes"] == (sweep / "report.html").stat().st_size < 2_500_000
    assert main(["report", "runs/demo/sweep/weight=0,seed=1", "runs/demo/sweep/weight=0,seed=0"]) == 0
    assert capsys.readouterr().out.startswith("runs/demo/sweep/report.html  (")
    assert main(["report", "runs/demo/sweep/*seed=0", "--out", "elsewhere/page.html"]) == 0
    assert "2 runs, 2 settings" in capsys.readouterr().out
    assert (Path("elsewhere") / "page.html").is_file()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["nowhere"], "nowhere is not a run folder"),
        (["runs/demo/sweep", "--out", "runs"], "the report is a file"),
        (["runs/demo/sweep", "--yes"], "has no option --yes"),
        (["runs/demo/sweep", "--out", "runs/demo/sweep/sweep.json/x.html"], "cannot be written"),
    ],
    ids=["no run", "a folder", "an option", "below a file"],
)
def test_refusals_of_report(words: list[str], says: str, sweep: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (sweep / "sweep.json").write_text("{}")
    assert main(["report", *words]) == 2
    assert says in capsys.readouterr().err
