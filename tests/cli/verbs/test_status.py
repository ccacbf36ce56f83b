"""`rlhf status`: one row per run in any state, as a table and as JSON."""

from __future__ import annotations

import json
import os
import socket
import time
from pathlib import Path

import pytest

from rlhf_cli.cli import main
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.run_status import read_status, update_status


@pytest.fixture(autouse=True)
def without_slurm(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")


def make_run(place: Path, name: str, **status: object) -> RunFolder:
    folder = RunFolder(place / "runs" / "exp" / name)
    folder.path.mkdir(parents=True)
    folder.config.write_text("launch: {}\n")
    update_status(folder, **{"state": "created", **status})
    return folder


def rows(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, dict[str, object]]:
    capsys.readouterr()
    assert main(["status", "--json", *words]) == 0
    return {str(row["run"]): row for row in json.loads(capsys.readouterr().out)}


def log(folder: RunFolder, *steps_and_times: tuple[int, float]) -> None:
    lines = [json.dumps({"step": step, "time_s": time_s, "loss": 1.0}) for step, time_s in steps_and_times]
    folder.metrics.write_text("\n".join(lines) + "\n")


def test_a_training_run(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Steps 10, 12, 14 at 30, 35, 40 s are 2.5 s per step; the remaining 86 steps take 215 s."""
    alive = {"pid": os.getpid(), "host": socket.gethostname(), "last_checkpoint": "checkpoint-10"}
    folder = make_run(place, "one", state="running", step=14, max_steps=100, **alive)
    log(folder, (10, 30.0), (12, 35.0), (14, 40.0))
    old = time.time() - 90
    os.utime(folder.metrics, (old, old))
    row = rows(capsys)["runs/exp/one"]
    assert (row["state"], row["step"], row["max_steps"]) == ("running", 14, 100)
    assert (row["last_checkpoint"], row["s_per_step"], row["time_left_s"]) == ("checkpoint-10", 2.5, 215)
    assert row["log_age_s"] == pytest.approx(90, abs=20)
    main(["status"])
    table = capsys.readouterr().out
    assert "14/100" in table
    assert "3 min" in table
    assert "step 10" in table


@pytest.mark.parametrize("content", ["{", '{"state": 3}', "\udcff"])
def test_a_damaged_run_does_not_hide_the_others(place: Path, capsys, content: str) -> None:
    broken = make_run(place, "broken")
    broken.status.write_bytes(content.encode("utf-8", errors="surrogateescape"))
    make_run(place, "good", state="finished", step=9, max_steps=9)
    seen = rows(capsys)
    assert seen["runs/exp/broken"]["state"] == "unreadable"
    assert "status.json" in str(seen["runs/exp/broken"]["reason"])
    assert seen["runs/exp/good"]["state"] == "finished"


def test_named_runs_are_shown_once(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Name a run, a sweep of two and a folder of all; a run that is named twice has one row."""
    make_run(place, "one")
    for job in ("sweep/0", "sweep/1"):
        make_run(place, job)
    assert list(rows(capsys, "runs/exp/one")) == ["runs/exp/one"]
    assert list(rows(capsys, "runs/exp/sweep")) == ["runs/exp/sweep/0", "runs/exp/sweep/1"]
    assert list(rows(capsys, "runs/exp/one", "runs")) == ["runs/exp/one", "runs/exp/sweep/0", "runs/exp/sweep/1"]
    assert list(rows(capsys)) == ["runs/exp/one", "runs/exp/sweep/0", "runs/exp/sweep/1"]


def test_a_run_stopped_by_its_user_is_not_called_preempted(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(place, "mine", state="preempted", reason="Ctrl-C", step=3, max_steps=9)
    make_run(place, "slurms", state="preempted", reason="SIGTERM", step=3, max_steps=9)
    assert {row["state"] for row in rows(capsys).values()} == {"preempted"}
    assert main(["status"]) == 0
    said = {line.split()[0]: line.split()[1:] for line in capsys.readouterr().out.splitlines()}
    assert (said["runs/exp/mine"], said["runs/exp/mine:"]) == (["stopped", "3/9"], ["Ctrl-C"])
    assert (said["runs/exp/slurms"], said["runs/exp/slurms:"]) == (["preempted", "3/9"], ["SIGTERM"])
    main(["why", "runs/exp/mine"])
    why = capsys.readouterr().out
    assert "runs/exp/mine: stopped by Ctrl-C at step 3 of 9" in why
    assert why.count("Ctrl-C") == 1
    assert read_status(RunFolder(place / "runs/exp/mine")).was_in_words == "was stopped by Ctrl-C at step 3"
    assert read_status(RunFolder(place / "runs/exp/slurms")).was_in_words == "was preempted at step 3: SIGTERM"


@pytest.mark.parametrize(("width", "left_out"), [("80", []), ("60", ["s/step", "saved"]), ("200", [])])
def test_the_table_is_one_at_any_width(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, width: str, left_out: list[str]
) -> None:
    monkeypatch.setenv("COLUMNS", width)
    alive = {"pid": os.getpid(), "host": socket.gethostname(), "last_checkpoint": "checkpoint-100", "max_steps": 400}
    names = ["20260131-101500", "20260131-101501"]
    for name in names:
        log(make_run(place, name, state="running", step=120, **alive), (10, 30.0), (12, 75.0), (14, 150.0))
    main(["status"])
    lines = capsys.readouterr().out.splitlines()
    heads = [line for line in lines if line.startswith("run ")]
    assert len(heads) == 1
    assert set(heads[0].split()) == {"run", "state", "step", "s/step", "left", "logged", "saved"} - set(left_out)
    prefix = "" if width == "200" else "runs/exp/"
    assert ("runs/exp/" in lines) is bool(prefix)
    assert [line.split()[0] for line in lines if "running" in line] == [
        f"runs/exp/{name}"[len(prefix) :] for name in names
    ]
    assert all(any(name in line for line in lines if line.startswith("no room")) for name in left_out)
