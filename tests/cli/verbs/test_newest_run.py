"""A verb without a run suggests the newest run, or how to make the first."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rlhf_cli.cli import main
from tests.support.logged_runs import configured, write_run

NEWEST = {
    **dict.fromkeys(("why", "verify", "resume", "reproduce"), "runs/other/s/a=1,b=2"),
    "whatif": "runs/other/s/a=1,b=2 rewards.correct.weight=0.3",
    **dict.fromkeys(("eval", "generate", "export"), "runs/mine/one"),  # the newest with a model
    **dict.fromkeys(("compare", "report", "sync"), "runs/other"),
}
FIRST = "rlhf train +exp=quickstart"


@pytest.fixture
def runs(place: Path) -> None:
    """Make three runs: the oldest is finished and has a model, the newest is in a sweep."""
    for age, (name, state) in enumerate(
        [("other/s/a=1,b=2", "failed"), ("mine/two", "failed"), ("mine/one", "finished")]
    ):
        run = write_run(place / "runs" / name, configured(), {}, state=state)
        if state == "finished":
            run.model.mkdir()
        os.utime(run.status, (1e9 - age, 1e9 - age))


def hint(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main([*words]) == 2
    return capsys.readouterr().err.partition("try:")[2].strip()


@pytest.mark.parametrize("verb", NEWEST)
def test_the_newest(runs: None, capsys: pytest.CaptureFixture[str], verb: str) -> None:
    assert hint(capsys, verb) == f"rlhf {verb} {NEWEST[verb]}"


@pytest.mark.parametrize("verb", ["why", "eval", "compare", "sync"])
def test_negative_control_without_runs(place: Path, capsys: pytest.CaptureFixture[str], verb: str) -> None:
    assert hint(capsys, verb).startswith(f"{FIRST} && rlhf {verb} run:quickstart")


def test_resume_suggests_the_folder_of_a_run(runs: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert hint(capsys, "resume", "run:mine") == "rlhf resume runs/mine/two"
