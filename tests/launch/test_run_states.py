"""The state of a run: its own, or Slurm's if it ended without recording one."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest

from rlhf_cli.errors import RunError
from rlhf_cli.launch import run_states
from rlhf_cli.launch.run_states import SlurmJob, overview, with_job_state, without_lost_jobs
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.run_status import Status, read_status, update_status
from rlhf_cli.runs.writer_lock import only_writer
from tests.support.stand_in_slurm import StandInSlurm, stand_in


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandInSlurm:
    return stand_in(tmp_path / "slurm-commands", monkeypatch)


def queued_run(place: Path, name: str, job_id: str | None, state: str = "queued") -> RunFolder:
    folder = RunFolder(place / "runs" / "exp" / name)
    folder.path.mkdir(parents=True)
    folder.config.write_text("launch: {}\n")
    update_status(folder, state=state, job_id=job_id)
    return folder


@pytest.mark.parametrize(
    ("state", "job", "shown", "reason"),
    [
        ("queued", SlurmJob("PENDING", "Priority"), "queued", None),
        ("queued", SlurmJob("PENDING", "PartitionTimeLimit"), "queued", "PartitionTimeLimit"),
        ("queued", SlurmJob("RUNNING"), "running", "starting"),
        ("queued", SlurmJob("CANCELLED"), "killed", "Slurm: CANCELLED, before it began"),
        ("queued", None, "killed", "Slurm has no job 7 any more, before it began"),
        ("running", SlurmJob("RUNNING"), "running", None),
        ("running", SlurmJob("TIMEOUT"), "killed", "Slurm: TIMEOUT"),
        ("running", SlurmJob("PENDING", "BeginTime"), "queued", "goes on from checkpoint-4"),
        ("running", None, "killed", "Slurm has no job 7 any more"),
        ("preempted", SlurmJob("PENDING", "BeginTime"), "queued", "goes on from checkpoint-4"),
        ("preempted", SlurmJob("FAILED"), "preempted", None),  # by its own exit code
        ("preempted", None, "preempted", None),
        # A final state of the run wins over that of its job.
        ("finished", SlurmJob("TIMEOUT"), "finished", None),
    ],
)
def test_what_slurm_says_of_a_run(state: str, job: SlurmJob | None, shown: str, reason: str | None) -> None:
    saved = None if state == "queued" else "checkpoint-4"
    concluded = with_job_state(Status(state, job_id="7", last_checkpoint=saved), job)
    assert (concluded.state, concluded.reason) == (shown, reason)


def test_one_question_for_all_and_what_this_user_has_in_line_elsewhere(slurm: StandInSlurm, place: Path) -> None:
    """Jobs of other programs, of folders that are listed anyway, and what has ended elsewhere are left out."""
    lines = (
        "7|RUNNING|None|rlhf:exp/a|/a\n8_1|PENDING|Resources|rlhf:s|/s\n8_0|TIMEOUT|TimeLimit|rlhf:s|/s\n"
        "9|PENDING|QOSMaxJobsPerUserLimit|rlhf:exp/other|/elsewhere/runs/exp/other\n"
        "10|RUNNING|None|rlhf:exp/third|/elsewhere/runs/exp/third\n"
        "11|CANCELLED|None|rlhf:exp/gone|/elsewhere/runs/exp/gone\n"
        "12|RUNNING|None|jupyter|(null)\n"
    )
    slurm.says("squeue", lines)
    for name, job_id in (("a", "7"), ("b", "8_0"), ("c", "8_1")):
        queued_run(place, name, job_id)
    here = [
        ("runs/exp/a", "running", "RUNNING"),
        ("runs/exp/b", "killed", "TIMEOUT"),
        ("runs/exp/c", "queued", "PENDING"),
    ]
    rows, notice = overview([place / "runs"])
    assert [(row.run, row.state, row.slurm_state) for row in rows] == here
    assert notice is None
    (call,) = slurm.calls
    assert "--jobs 7,8" in call
    *rows, other, third = overview([place / "runs"], mine=True)[0]
    assert [(row.run, row.state, row.slurm_state) for row in rows] == here
    assert not other.config_edited
    assert (other.run, other.state, other.reason) == ("/elsewhere/runs/exp/other", "queued", "QOSMaxJobsPerUserLimit")
    assert (third.run, third.state) == ("/elsewhere/runs/exp/third", "running")


@pytest.mark.parametrize("said", ["Unable to contact slurm controller", "squeue did not answer within 0.1 s"])
def test_a_slurm_that_is_down_concludes_nothing(slurm: StandInSlurm, place: Path, monkeypatch, said: str) -> None:
    slurm.says("squeue", error=f"slurm_load_jobs error: {said}\n")
    if "answer" in said:
        (slurm.folder / "squeue").write_text("#!/bin/sh\nexec sleep 20\n")
        monkeypatch.setattr(run_states, "SLURM_TIMEOUT_S", 0.1)
    queued_run(place, "a", "7")
    rows, notice = overview([place / "runs"])
    assert rows[0].state == "queued"
    assert said in str(notice)


@pytest.mark.parametrize(
    ("said", "state", "is_free"),
    [
        ("", "killed", False),
        ("7|TIMEOUT|None|rlhf:a|/a\n", "killed", True),
        ("7|PENDING|BeginTime|rlhf:a|/a\n", "queued", False),
        ("7|RUNNING|None|rlhf:a|/a\n", "running", False),
        (None, "running", False),
    ],
)
def test_a_run_and_a_sweep_that_slurm_killed_on_a_node_need_no_take_over(
    slurm: StandInSlurm, place: Path, said: str | None, state: str, is_free: bool
) -> None:
    run = queued_run(place, "a", "7", "running")
    sweep, process = RunFolder(run.path.parent), {"pid": 4711, "host": "node07", "start_ticks": 1, "boot": "theirs"}
    status = update_status(run, **process)
    for folder in (run, sweep):
        (folder.path / ".writer.json").write_text(json.dumps({"process": process, "since": 1.0, "slurm_job": "7"}))
    slurm.says("squeue", said or "", error="no contact\n" if said is None else None)
    known = without_lost_jobs({sweep: Status("created"), run: status})  # type: ignore[arg-type]
    assert (known[run].state, known[sweep].state) == (state, "created")
    assert len(slurm.calls) == 1
    assert (read_status(run).state == "killed") is is_free
    for folder in (run, sweep):
        ends = contextlib.nullcontext() if is_free else pytest.raises(RunError, match="another machine")
        with ends, only_writer(folder):
            pass


def test_the_job_of_another_user_is_asked_for(slurm: StandInSlurm, place: Path) -> None:
    answer = '#!/bin/sh\ncase "$*" in *--me) ;; *) echo "7|PENDING|Priority|rlhf:a|/a" ;; esac\n'
    (slurm.folder / "squeue").write_text(answer)
    queued_run(place, "a", "7")
    (row,) = overview([place / "runs"], mine=True)[0]
    assert (row.state, row.slurm_state) == ("queued", "PENDING")
