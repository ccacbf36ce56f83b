"""`rlhf verify`: exit code 0 if all expectations are met, 1 if one is not, 2 without expectations."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlhf_cli.cli import main
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.text.json_values import JsonValue
from tests.support.logged_runs import configured, write_run

Said = pytest.CaptureFixture[str]
MET: JsonValue = [{"metric": "correct", "at_least": 0.5}]
MISSED: JsonValue = [{"metric": "correct", "at_least": 0.5}, {"metric": "correct", "at": 3, "at_least": 0.9}]


@pytest.fixture
def run(place: Path):
    """Return `run(name, expect)`, which writes a run whose reward `correct` is 0.75 at all 20 steps."""

    def write(name: str, expect: JsonValue, state: str = "finished") -> RunFolder:
        curves = {"rewards/correct/mean": [0.75] * 20}
        return write_run(place / "runs" / "sweep" / name, configured(expect=expect), curves, state=state)

    return write


def test_missed(run, capsys: Said) -> None:
    run("one", MISSED)
    assert main(["verify", "runs/sweep/one", "--json"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert said["state"] == "missed"
    (run_json,) = said["runs"]
    assert (run_json["run"], run_json["run_state"], run_json["state"]) == ("runs/sweep/one", "finished", "missed")
    assert [expected["state"] for expected in run_json["expectations"]] == ["met", "missed"]
    assert run_json["expectations"][1] == {
        **{"name": "1", "metric": "rewards/correct/mean", "at": 3, "at_least": 0.9, "at_most": None},
        **{"state": "missed", "value": 0.75, "why": None},
    }


def test_a_sweep(run, capsys: Said) -> None:
    run("one", MET)
    run("two", MISSED)
    run("three", None)
    assert main(["verify", "runs/sweep"]) == 1
    said = capsys.readouterr().out
    assert "runs/sweep/three: " in said
    assert "3 runs: 1 met, 1 missed, 1 " in said
    assert main(["verify", "runs/sweep/one", "runs/sweep/three", "runs/sweep/one"]) == 0


def test_a_run_without_expectations(run, capsys: Said) -> None:
    run("one", None)
    assert main(["verify", "runs/sweep/one"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "the run has no expectations" in said.err
    assert "expect: [{metric: reward, at: end, at_least: 0.5}]" in said.err
