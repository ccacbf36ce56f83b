"""Runs that are left to a real Slurm: `make test-slurm`, four minutes on two busy cores."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rlhf_cli.cli import main
from rlhf_cli.runs.metrics_file import read_metrics, series
from rlhf_cli.runs.provenance import weights_hash
from rlhf_cli.runs.run_folder import RunFolder, read_json
from scripts.slurm.one_machine import bring_down, bring_up, missing
from tests.support.small_runs import SMALL

pytestmark = [pytest.mark.slurm]

ON_SLURM = [*(word for word in SMALL if not word.startswith("launch=")), "launch=slurm", "launch.device=cpu"]
_TIMEOUT_S = 300

SLOW = """\
import os, time

def slow(completions, *, seconds, **kwargs):
    if "SLURM_JOB_ID" in os.environ and "SLURM_RESTART_COUNT" not in os.environ:
        time.sleep(seconds)
    return [float(len(text)) for text in completions]
"""
"""A reward that takes its time in a job's first attempt alone, and is worth the same in each."""


@pytest.fixture(scope="module", params=[1])
def daemons(request: pytest.FixtureRequest) -> Iterator[dict[str, str]]:
    """A real Slurm of this one machine, of as many nodes: the environment that points Slurm's commands at it.

    Skips where Slurm or munge is not installed, or a container does not let it come up, with its last words.
    """
    if absent := missing():
        pytest.skip(f"not installed here: {', '.join(absent)} (apt-get install slurm-wlm munge)")
    folder = Path(tempfile.mkdtemp(prefix="rlhf-slurm-"))  # short: munge's socket lies in it
    try:
        try:
            environment = bring_up(folder, request.param)
        except RuntimeError as error:
            pytest.skip(f"no Slurm comes up here: {error}")
        yield environment
    finally:
        bring_down(folder)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def slurm(daemons: dict[str, str], workplace: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, value in daemons.items():
        monkeypatch.setenv(name, value)
    return workplace


def slow(seconds: float) -> list[str]:
    return ["rewards.slow.fn=./slow.py:slow", f"rewards.slow.args.seconds={seconds}"]


def rows(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, object]]:
    capsys.readouterr()
    assert main(["status", "--json", *words]) == 0
    found: list[dict[str, object]] = json.loads(capsys.readouterr().out)
    return found


def wait_until(capsys, folder: Path, done: Callable[[list[dict[str, object]]], bool]) -> list[dict[str, object]]:
    until = time.monotonic() + _TIMEOUT_S
    while not done(found := rows(capsys, str(folder))):
        logs = [*folder.glob("slurm/*.out"), *folder.glob("../slurm/*.out")]
        assert time.monotonic() < until, [found, *(log.read_text() for log in logs)]
        time.sleep(0.5)
    return found


def end_of(job_id: object) -> str:
    """Wait for the end of a job, which comes a moment after that of its run, and return Slurm's word for it."""
    command = ["squeue", "--noheader", "--states=all", "--format=%T", "--jobs", str(job_id)]
    until = time.monotonic() + _TIMEOUT_S
    going_on = ("RUNNING", "SIGNALING", "COMPLETING")
    while (state := subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()) in going_on:
        assert time.monotonic() < until
        time.sleep(0.5)
    return state


def are(*states: str) -> Callable[[list[dict[str, object]]], bool]:
    return lambda rows: {str(row["state"]) for row in rows} <= set(states)


def run_folder(slurm: Path, name: str) -> RunFolder:
    return RunFolder(slurm / "runs" / "quickstart" / name)


def attempts(folder: RunFolder) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder.path / "slurm" / "attempts.jsonl").read_text().splitlines()]


def test_out_of_time_saved_put_back_and_whole(slurm: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A minute is all the first attempt has, and its rewards alone would take 90 s, after some 10 to start.

    Slurm looks for jobs that come to their end every 30 s, and so tells this one to save 8 to 38 s before. What comes
    of two attempts has the weights of an uninterrupted run.
    """
    (slurm / "slow.py").write_text(SLOW)
    words = ["trainer.args.max_steps=30", *slow(3), "run.name=cut"]
    assert main(["train", *ON_SLURM, *words, "launch.slurm.time=1:00", "launch.grace_s=8"]) == 0
    cut = run_folder(slurm, "cut")
    (row,) = wait_until(capsys, cut.path, are("finished", "failed", "killed"))
    assert (row["state"], end_of(row["job_id"])) == ("finished", "COMPLETED")
    first, second, *_ = attempts(cut)
    assert first["exit_code"] == 75
    assert 0 < first["step_at_end"] == second["step_at_start"] < 30
    assert main(["train", *SMALL, *words, "run.name=whole"]) == 0
    whole = run_folder(slurm, "whole")
    assert weights_hash(cut.model) == weights_hash(whole.model)
    assert series(read_metrics(cut.metrics), "grad_norm") == series(read_metrics(whole.metrics), "grad_norm")


def test_what_is_cancelled_says_so(slurm: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A cancelled run saves if it trains; if it waits, it has made no file yet."""
    (slurm / "slow.py").write_text(SLOW)
    words = ["trainer.args.max_steps=300", *slow(1)]
    assert main(["train", *ON_SLURM, *words, "run.name=one"]) == 0
    assert main(["train", *ON_SLURM, "run.name=two", "+launch.slurm.extra.hold=true"]) == 0
    one, two = run_folder(slurm, "one"), run_folder(slurm, "two")
    (row,) = wait_until(capsys, one.path, lambda rows: int(str(rows[0]["step"])) >= 1)
    (waiting,) = rows(capsys, str(two.path))
    assert (waiting["state"], waiting["reason"]) == ("queued", "JobHeldUser")
    for cancelled in (row, waiting):
        subprocess.run(["scancel", str(cancelled["job_id"])], check=True)
    (row,) = wait_until(capsys, one.path, lambda rows: rows[0]["slurm_state"] == "CANCELLED")
    assert row["state"] == "preempted"
    assert "SIGTERM" in str(row["reason"])
    assert "Slurm: CANCELLED" in str(row["reason"])
    assert row["last_checkpoint"] == f"checkpoint-{row['step']}"
    (waiting,) = rows(capsys, str(two.path))
    assert (waiting["state"], waiting["reason"]) == ("killed", "Slurm: CANCELLED, before it began")
    assert main(["resume", str(two.path)]) == 0
    assert rows(capsys, str(two.path))[0]["state"] == "queued"


def test_after_a_node_failed_the_run_goes_on(slurm: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A node that is down ends its jobs without a word; Slurm starts them again, and they take their runs over."""
    (slurm / "slow.py").write_text(SLOW)
    words = ["trainer.args.max_steps=6", "trainer.args.save_steps=2", *slow(2)]
    assert main(["train", *ON_SLURM, *words, "run.name=one"]) == 0
    folder = run_folder(slurm, "one")
    wait_until(capsys, folder.path, lambda rows: rows[0]["last_checkpoint"] is not None)
    node = subprocess.run(["sinfo", "-h", "-o", "%n"], capture_output=True, text=True, check=True).stdout.strip()
    subprocess.run(["scontrol", "update", f"nodename={node}", "state=down", "reason=pulled"], check=True)
    (row,) = rows(capsys, str(folder.path))
    assert row["slurm_state"] in ("PENDING", "NODE_FAIL", "COMPLETING", "REQUEUED")
    subprocess.run(["scontrol", "update", f"nodename={node}", "state=resume"], check=True)
    (row,) = wait_until(capsys, folder.path, are("finished", "failed"))
    assert (row["state"], row["step"]) == ("finished", 6)


@pytest.mark.parametrize("daemons", [2], indirect=True)
def test_two_nodes_are_told_to_save_and_end_where_two_processes_do(slurm: Path, capsys) -> None:
    """Slurm warns the first node's batch process; the rank of the other node stops at the same step.
    The job continues by itself, and its model equals that of two uninterrupted processes on one machine.
    """
    (slurm / "slow.py").write_text(SLOW)
    words = ["trainer.args.max_steps=12", "trainer.args.per_device_train_batch_size=4", *slow(1.5)]
    nodes = ["launch.nodes=2", "launch.processes=1"]
    assert main(["train", *ON_SLURM, *words, *nodes, "run.name=nodes"]) == 0
    folder = run_folder(slurm, "nodes")
    (row,) = wait_until(capsys, folder.path, lambda rows: int(str(rows[0]["step"])) >= 1)
    subprocess.run(["scancel", "--signal=USR1", "--batch", str(row["job_id"])], check=True)
    (row,) = wait_until(capsys, folder.path, are("finished", "failed", "killed"))
    log = (folder.path / "slurm" / f"{row['job_id']}_0_log.out").read_text()
    assert (row["state"], end_of(row["job_id"])) == ("finished", "COMPLETED"), log
    first, second = attempts(folder)
    assert (first["exit_code"], first["was_warned"], second["exit_code"]) == (75, True, 0)
    assert 0 < first["step_at_end"] == second["step_at_start"] < 12
    assert (folder.path / "log-machine2.txt").is_file()
    assert read_json(folder.provenance)["world_size"] == 2
    assert main(["train", *SMALL, *words, "launch.processes=2", "run.name=alone"]) == 0
    assert weights_hash(folder.model) == weights_hash(run_folder(slurm, "alone").model)
    assert rows(capsys, str(folder.path))[0]["step"] == 12
