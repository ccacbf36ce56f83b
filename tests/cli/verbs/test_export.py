"""`rlhf export`: where it writes, what it prints, what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlhf_cli.cli import main
from rlhf_cli.runs.run_folder import RunFolder
from tests.project.finished_runs import finished_run, random_model

KEYS = {"folder", "kind", "step", "merged", "files", "weights_sha256", "notes"}


@pytest.fixture
def run(place: Path) -> RunFolder:
    return finished_run(place / "runs" / "mine" / "one", random_model("CAUSAL_LM"))


def test_export_into_a_folder_with_a_blank(run: RunFolder, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "run:mine", "--out", "my model", "--json"]) == 0
    said = capsys.readouterr()
    found = json.loads(said.out)
    assert (set(found), found["folder"], found["kind"], found["step"]) == (KEYS, "my model", "policy", 3)
    assert {"README.md", "config.json", "model.safetensors", "training_config.yaml"} <= set(found["files"])
    assert "copying the weights" in said.err


def test_export_into_the_run_overwrites_nothing(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "runs/mine/one"]) == 0
    assert (run.path / "export" / "config.json").is_file()
    assert "  hf upload OWNER/NAME runs/mine/one/export --private  #" in capsys.readouterr().out
    assert main(["export", "runs/mine/one"]) == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["runs/mine/one", "runs/mine/two"], "one run at a time"),
        (["nowhere"], "is not a run folder"),
        (["run:nothing"], "no run of 'nothing' has finished"),
        (["runs/mine/one", "--checkpoint", "x"], "--checkpoint is a whole number"),
        (["runs/mine/one", "--checkpoint", "2"], "there is no checkpoint of step 2"),
        (["runs/mine/one", "--oout", "x"], "--out"),
        (["runs/mine/one", "--out", "runs/mine/one/config.yaml/x"], "the model cannot be written"),
    ],
)
def test_refusals(words: list[str], said: str, run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", *words]) == 2
    assert said in capsys.readouterr().err
    assert not (run.path / "export").exists()
