"""Names of runs and files on the command line, and suggestions for missing and misspelt ones."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from rlhf_cli.cli import main
from rlhf_cli.cli.run_arguments import place_of
from rlhf_cli.errors import DataError, RunError
from rlhf_cli.evaluation.score_completions import read_completions
from rlhf_cli.plan.prepare import prepare
from tests.support.logged_runs import configured, write_run

Said = pytest.CaptureFixture[str]
SWEEP, JOB = "run:other/s", "runs/other/s/a=1,b=2"
NEWEST = {
    **{verb: f"rlhf {verb} {JOB}" for verb in ("why", "verify", "resume", "reproduce")},
    "whatif": f"rlhf whatif {JOB} rewards.correct.weight=0.3",
    **{verb: f"rlhf {verb} runs/mine/one" for verb in ("eval", "generate", "export")},  # the newest with a model
    **{verb: f"rlhf {verb} runs/other" for verb in ("compare", "report", "sync")},
    "resume run:mine": "rlhf resume runs/mine/two",
    f"reproduce runs/mine/one --against {SWEEP}": JOB,
    f"score +exp=quickstart --completions {SWEEP}": JOB,
}
"""What is typed -> what is suggested."""


@pytest.fixture
def runs(place: Path) -> None:
    """Make three runs: the oldest is finished and has a model, the newest is in a sweep."""
    for age, (name, state) in enumerate([(JOB, "failed"), ("runs/mine/two", "failed"), ("runs/mine/one", "finished")]):
        run = write_run(place / name, configured(), {}, state=state)
        if state == "finished":
            run.model.mkdir()
        os.utime(run.status, (1e9 - age, 1e9 - age))
    (place / JOB / "../sweep.json").write_text("{}")


def hint(capsys: Said, *words: str) -> str:
    assert main([*words]) == 2
    return capsys.readouterr().err.partition("try:")[2].strip()


@pytest.mark.parametrize("typed", NEWEST)
def test_the_newest_run_is_suggested(runs: None, capsys: Said, typed: str) -> None:
    assert hint(capsys, *typed.split()) == NEWEST[typed]


@pytest.mark.parametrize("verb", ["why", "eval", "compare", "sync"])
def test_negative_control_without_runs(place: Path, capsys: Said, verb: str) -> None:
    assert hint(capsys, verb).startswith(f"rlhf train +exp=quickstart && rlhf {verb} run:quickstart")


def test_a_name_behind_run_is_a_folder_or_gets_the_nearest(runs: None) -> None:
    assert place_of(SWEEP, where="rlhf status") == Path("runs/other/s")
    with pytest.raises(RunError) as caught:
        place_of("run:mien", where="rlhf status")
    assert caught.value.hint == "run:mine"


@pytest.mark.parametrize(
    ("typed", "suggested"),
    [
        (["check", "+exp=quickstart", "seed=1,2", "--rows", "2"], "rlhf train -m +exp=quickstart 'seed=1,2'"),
        (["train", "-m", "+exp=quickstart", "seed=1,2", "--allow", "data", "--take-over"], "rlhf resume --help"),
    ],
)
def test_words_of_another_verb(place: Path, capsys: Said, typed: list[str], suggested: str) -> None:
    assert hint(capsys, *typed) == suggested


def test_missing_completions_are_not_looked_up_on_the_hub(place: Path) -> None:
    """A name without a dot may be a hub id of training data, but completions are files."""
    (place / "data").mkdir()
    (place / "data" / "said.jsonl").write_text('{"prompt": "1+1=", "completion": "2"}\n')
    experiment = prepare(["+exp=quickstart"]).experiment
    with pytest.raises(DataError) as caught:
        read_completions(Path("nope"), limit=None, experiment=experiment)
    assert "no such file" in caught.value.what
    assert "data/said.jsonl" in str(caught.value.advice)
    assert len(read_completions(Path("data/said.jsonl"), limit=None, experiment=experiment)) == 1


@pytest.mark.parametrize(
    ("encoding", "folder", "code"), [("iso8859-1", "Übung", 2), ("iso8859-1", "u", 0), ("utf-8", "ü", 0)]
)
def test_a_name_in_another_encoding_than_the_libraries_read_is_refused(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: Said, encoding: str, folder: str, code: int
) -> None:
    (place / folder).mkdir()
    monkeypatch.chdir(place / folder)
    monkeypatch.setattr(sys, "getfilesystemencoding", lambda: encoding)
    assert main(["list"]) == code
    assert ("export PYTHONUTF8=1" in capsys.readouterr().err) is (code == 2)
