"""`rlhf export` as it is typed: where it writes, what it prints, what it refuses, and a push of what was edited."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlhf_cli.cli import main
from rlhf_cli.project.export import hub_push
from rlhf_cli.runs.run_folder import RunFolder
from tests.project.export.finished_runs import finished_run, random_model
from tests.project.export.test_hub_push import HubThatRemembers

KEYS = {"folder", "kind", "step", "merged", "files", "bytes", "weights_sha256", "notes", "pushed_to"}


@pytest.fixture
def run(place: Path) -> RunFolder:
    return finished_run(place / "runs" / "mine" / "one", random_model("CAUSAL_LM"))


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> HubThatRemembers:
    remembers = HubThatRemembers()
    monkeypatch.setattr(hub_push, "HfApi", lambda: remembers)
    return remembers


def test_by_name_as_json_and_into_a_folder_with_a_blank(
    run: RunFolder, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", "run:mine", "--out", "my model", "--json"]) == 0
    said = capsys.readouterr()
    found = json.loads(said.out)
    assert set(found) == KEYS
    assert (found["folder"], found["kind"], found["step"]) == ("my model", "policy", 3)
    assert found["bytes"] == sum((place / "my model" / name).stat().st_size for name in found["files"])
    assert "copying the weights" in said.err


def test_into_the_run_and_never_over_something(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "runs/mine/one"]) == 0
    assert (run.path / "export" / "config.json").is_file()
    assert "--push OWNER/NAME" in capsys.readouterr().out
    assert main(["export", "runs/mine/one"]) == 2
    assert "there is something" in capsys.readouterr().err


def test_a_push_of_a_folder_whose_card_was_edited(
    run: RunFolder, place: Path, hub: HubThatRemembers, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", "runs/mine/one", "--out", "out"]) == 0
    (place / "out" / "README.md").write_text("my own words")
    capsys.readouterr()
    assert main(["export", "runs/mine/one", "--out", "out", "--push", "me/mine", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["pushed_to"] == "https://hub.example/me/mine"
    assert (place / "out" / "README.md").read_text() == "my own words"
    assert hub.calls[1][1]["folder"] == place / "out"
    assert hub.calls[0][1]["private"] is True


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "one run is exported at a time"),
        (["runs/mine/one", "runs/mine/two"], "one run is exported at a time"),
        (["nowhere"], "is not a run folder"),
        (["run:nothing"], "no run of 'nothing' has finished"),
        (["runs/mine/one", "--public"], "--public is for --push"),
        (["runs/mine/one", "--checkpoint", "x"], "--checkpoint is a whole number"),
        (["runs/mine/one", "--checkpoint", "2"], "there is no checkpoint of step 2"),
        (["runs/mine/one", "--critic"], "this run has no critic"),
        (["runs/mine/one", "--oout", "x"], "--out"),
    ],
)
def test_refusals(words: list[str], said: str, run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", *words]) == 2
    assert said in capsys.readouterr().err
    assert not (run.path / "export").exists()


def test_the_upload_that_is_offered_is_what_was_typed_and_no_more(
    run: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", "runs/mine/one"]) == 0
    assert "  rlhf export runs/mine/one --push OWNER/NAME  #" in capsys.readouterr().out
    assert main(["export", "runs/mine/one", "--out", "my model"]) == 0
    assert "  rlhf export runs/mine/one --out 'my model' --push OWNER/NAME  #" in capsys.readouterr().out
