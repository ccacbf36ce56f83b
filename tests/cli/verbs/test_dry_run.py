"""`rlhf train --dry-run` shows the commands of all processes and starts and writes nothing."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from rlhf_cli.cli import main
from tests.support.begun_runs import begun
from tests.support.json_shapes import is_described

TWO = ("launch.processes=2", "trainer.args.per_device_train_batch_size=32")


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["train", "--dry-run", "+exp=quickstart", "track=none", *words]) == 0
    return capsys.readouterr().out


def test_two_ranks(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = said(capsys, *TWO, "run.name=mine")
    assert list(place.iterdir()) == []
    lines = out.splitlines()
    ranks = [line for line in lines if line.startswith("rank 1  ")]
    assert len(ranks) == 1
    assert ranks[0].startswith("rank 1  RANK=1 LOCAL_RANK=1 ")
    assert ranks[0].endswith(f"-m rlhf_cli.launch.rank_process {place}/runs/quickstart/mine")
    (shared,) = [line for line in lines if line.startswith("every rank  export ")]
    assert "WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=0" in shared
    assert "log  runs/quickstart/mine/log.txt" in lines
    assert "resume  rlhf resume runs/quickstart/mine" in lines
    assert lines[-1] == "nothing was started or written"


def test_two_machines(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Show the torchrun command to type on each machine. Without torchrun, the run is refused."""
    words = ("launch=cpu", "launch.nodes=2", "run.name=mine", TWO[1])
    (line,) = [line for line in said(capsys, *words).splitlines() if line.startswith("every machine  ")]
    assert "torchrun --nnodes=2 --nproc-per-node=1 " in line
    assert {"+exp=quickstart", "launch=cpu", "launch.nodes=2"} <= set(line.partition("rlhf train ")[2].split())
    for more in ([], ["-m", "seed=1,2"], ["-m", "sweep=weights", "sweep.objective=correct"]):
        assert main(["train", "+exp=quickstart", "track=none", *words, *more]) == 2
        error = capsys.readouterr().err
        assert "where:    launch.nodes (command line)" in error
        assert "torchrun" in error
    assert list(place.iterdir()) == []


def test_a_search_needs_m(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train", "+exp=quickstart", "track=none", "sweep.objective=[correct, loss]", "sweep=weights", "--dry-run"]
    assert main(words) == 2
    typed = shlex.split(capsys.readouterr().err.partition("try:")[2])
    assert sorted(typed) == sorted(["rlhf", "train", "-m", *words[1:]])
    assert main(typed[1:]) == 0


def test_the_plan_of_a_resume(place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    run = begun("launch=cpu", "track=none")
    monkeypatch.setattr("rlhf_cli.launch.resuming.train_frozen", lambda *_, **__: pytest.fail("it was started"))
    before = {file: file.read_bytes() for file in place.rglob("*") if file.is_file()}
    assert main(["resume", run.shown, "--dry-run"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "nothing was started or written"
    assert main(["resume", run.shown, "--dry-run", "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert (is_described("resume", planned), planned["folder"], planned["resumes"]) == (True, run.shown, True)
    assert {file: file.read_bytes() for file in place.rglob("*") if file.is_file()} == before
