"""How a run or a file is named at the command line, and what is answered where the name is nearly right.

The expectations are the folders that each test makes itself.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlhf_cli.cli.run_arguments import place_of
from rlhf_cli.errors import DataError, RunError
from rlhf_cli.evaluation.score_completions import read_completions
from rlhf_cli.runs.run_folder import open_run

MODELS = ("package:smollm2", "tiny.gguf", "tiny.GGUF")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two runs of one experiment, the second of which has finished."""
    for name, state in (("a1", "running"), ("b2", "finished")):
        run = tmp_path / "runs" / "first" / name
        (run / "model").mkdir(parents=True)
        (run / "config.yaml").write_text("seed: 0\n")
        (run / "status.json").write_text(json.dumps({"state": state, "updated_at": 1.0}))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_run_name_of_nothing_is_refused_with_the_nearest(here: Path) -> None:
    with pytest.raises(RunError) as caught:
        place_of("run:frist", where="rlhf status")
    assert caught.value.hint == "run:first"


@pytest.mark.parametrize(
    ("typed", "hint"),
    [
        ("first", "runs/first"),  # without the folder that all runs are in
        ("frist", "runs/first"),
        ("runs/frist", "runs/first"),
        ("first/b2", "runs/first/b2"),
        ("runs/first/b", "runs/first/b2"),  # the beginning of a name
        ("runs/zzzzzz", "rlhf status"),
        *((model, f"rlhf generate {model} +exp=NAME, or rlhf train +exp=NAME model.path=...") for model in MODELS),
    ],
)
def test_a_run_that_is_not_there_is_answered_with_one_that_is(here: Path, typed: str, hint: str) -> None:
    with pytest.raises(RunError) as caught:
        open_run(Path(typed))
    assert caught.value.hint == hint


def test_completions_that_are_nowhere_are_no_dataset_of_the_hub(here: Path) -> None:
    """A name without a dot could be a hub id, where training data is meant; completions are files."""
    (here / "data").mkdir()
    (here / "data" / "said.jsonl").write_text('{"prompt": "1+1=", "completion": "2"}\n')
    with pytest.raises(DataError) as caught:
        read_completions(Path("nope"), limit=None)
    assert "no such file" in caught.value.what
    assert "data/said.jsonl" in str(caught.value.advice)
    assert len(read_completions(Path("data/said.jsonl"), limit=None)) == 1
