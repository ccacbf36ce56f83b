"""Names of runs and files on the command line, and suggestions for misspelt ones."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from rlhf_cli.cli import main
from rlhf_cli.cli.run_arguments import place_of
from rlhf_cli.errors import DataError, RunError
from rlhf_cli.evaluation.score_completions import read_completions
from rlhf_cli.plan.prepare import prepare
from rlhf_cli.runs.run_folder import open_run

MODELS = ("package:smollm2", "tiny.gguf", "tiny.GGUF")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with two runs of one experiment; the second has finished."""
    for name, state in (("a1", "running"), ("b2", "finished")):
        run = tmp_path / "runs" / "first" / name
        (run / "model").mkdir(parents=True)
        (run / "config.yaml").write_text("seed: 0\n")
        (run / "status.json").write_text(json.dumps({"state": state, "updated_at": 1.0}))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_an_unknown_run_name_gets_the_nearest(here: Path) -> None:
    with pytest.raises(RunError) as caught:
        place_of("run:frist", where="rlhf status")
    assert caught.value.hint == "run:first"


SWEEP, JOB = "run:first/s", "runs/first/s/seed=1"


@pytest.mark.parametrize(
    ("typed", "hint"),
    [
        (["reproduce", "runs/first/b2", "--against", SWEEP], JOB),
        (["score", "+exp=quickstart", "--completions", SWEEP], JOB),
        (["check", "+exp=quickstart", "seed=1,2", "--rows", "2"], "rlhf train -m +exp=quickstart 'seed=1,2'"),
        (["train", "-m", "+exp=quickstart", "seed=1,2", "--allow", "data", "--take-over"], "rlhf resume --help"),
    ],
)
def test_what_a_flag_names(here: Path, capsys: pytest.CaptureFixture[str], typed: list[str], hint: str) -> None:
    (here / JOB).mkdir(parents=True)
    for name in ("config.yaml", "../sweep.json"):
        (here / JOB / name).write_text("{}")
    assert main(typed) == 2
    assert capsys.readouterr().err.partition("try:")[2].strip() == hint
    assert place_of(SWEEP, where="rlhf status") == Path("runs/first/s")


@pytest.mark.parametrize(
    ("typed", "hint"),
    [
        ("first", "runs/first"),  # without `runs/`
        ("frist", "runs/first"),
        ("runs/frist", "runs/first"),
        ("first/b2", "runs/first/b2"),
        ("runs/first/b", "runs/first/b2"),  # the beginning of a name
        ("runs/zzzzzz", "rlhf status"),
        *((model, f"rlhf generate {model} +exp=NAME, or rlhf train +exp=NAME model.path=...") for model in MODELS),
    ],
)
def test_a_missing_run_gets_an_existing_one(here: Path, typed: str, hint: str) -> None:
    with pytest.raises(RunError) as caught:
        open_run(Path(typed))
    assert caught.value.hint == hint


def test_missing_completions_are_not_looked_up_on_the_hub(here: Path) -> None:
    """A name without a dot may be a hub id of training data, but completions are files."""
    (here / "data").mkdir()
    (here / "data" / "said.jsonl").write_text('{"prompt": "1+1=", "completion": "2"}\n')
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
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    encoding: str,
    folder: str,
    code: int,
) -> None:
    (place / folder).mkdir()
    monkeypatch.chdir(place / folder)
    monkeypatch.setattr(sys, "getfilesystemencoding", lambda: encoding)
    assert main(["list"]) == code
    assert ("export PYTHONUTF8=1" in capsys.readouterr().err) is (code == 2)
