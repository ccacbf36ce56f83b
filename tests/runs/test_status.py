"""What state a run is in, whatever became of its process."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from rlhf_cli.runs import run_status
from rlhf_cli.runs.run_folder import RunFolder, read_json
from rlhf_cli.runs.run_status import FINISHED, RUNNING, claim, name_who_asked, read_status, told_state, update_status
from rlhf_cli.runs.writer_lock import only_writer

MakeRun = Callable[..., RunFolder]
HERE = socket.gethostname()


@pytest.fixture
def dead_pid() -> int:
    """The id of a process that has been and gone."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


CRASHES = """
import os, signal, sys
from pathlib import Path
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.run_status import claim
from rlhf_cli.runs.writer_lock import only_writer
folder = RunFolder(Path(sys.argv[1]))
with only_writer(folder):
    claim(folder)
    os.kill(os.getpid(), signal.SIGSEGV)
"""


def test_whoever_reads_the_status_of_a_run_that_crashed_corrects_its_file(make_run: MakeRun) -> None:
    """The time stays that of its own last word, and what follows changes nothing any more."""
    folder = make_run()
    crashed = subprocess.run([sys.executable, "-c", CRASHES, str(folder.path)], check=False)
    assert crashed.returncode == -signal.SIGSEGV
    left = read_json(folder.status)
    assert left["state"] == "running"
    status = read_status(folder)
    assert status.state == "killed"
    assert read_json(folder.status) == {**left, "state": "killed", "reason": status.reason}
    assert "is gone without a final status" in str(status.reason)
    assert read_status(folder) == status
    with only_writer(folder) as taken_over:
        assert "which ended without a final status" in str(taken_over)
        claim(folder)
        assert (read_status(folder).state, read_status(folder).reason) == ("running", None)


def test_a_run_that_somebody_works_on_is_left_as_it_is(make_run: MakeRun, dead_pid: int) -> None:
    """A run that goes on has not said so yet; nor is a file that was written meanwhile overwritten."""
    folder = make_run(status={"state": "running", "pid": dead_pid, "host": HERE})
    with only_writer(folder):
        assert read_status(folder).state == "killed"
        assert read_json(folder.status)["state"] == "running"
    killed = read_status(folder)
    folder.status.write_text('{"state": "finished"}')
    run_status._write_killed(folder, killed, {"state": "running", "pid": dead_pid, "host": HERE})
    assert read_status(folder).state == "finished"


def test_a_folder_that_cannot_be_written_is_read_all_the_same(make_run: MakeRun, dead_pid: int, monkeypatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    folder = make_run(status={"state": "running", "pid": dead_pid, "host": HERE})
    monkeypatch.setattr(run_status, "write_json", refuse)
    assert read_status(folder).state == "killed"


@pytest.mark.parametrize(
    ("state", "reason", "named"),
    [
        ("preempted", "SIGTERM", "Ctrl-C"),
        ("preempted", "SIGTERM; no step ended within 9 s", "Ctrl-C; no step ended within 9 s"),
        ("preempted", "it has to be saved by 2030-01-01 00:00:00", "it has to be saved by 2030-01-01 00:00:00"),
        ("finished", "SIGTERM", "SIGTERM"),
        ("preempted", None, None),
    ],
)
def test_who_asked_is_named_in_place_of_the_signal_that_was_handed_on(
    make_run: MakeRun, state: str, reason: str | None, named: str | None
) -> None:
    folder = make_run(status={"state": state, "reason": reason})
    assert name_who_asked(folder, "Ctrl-C").reason == named
    assert read_status(folder).reason == named


def test_a_process_that_ended_and_was_not_asked_how_is_dead(make_run: MakeRun) -> None:
    """Under a container's init nobody may ever ask; the kernel keeps its number, and answers kill(pid, 0)."""
    child = subprocess.Popen(["true"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    folder = make_run(status={"state": "running", "pid": child.pid, "host": HERE})
    assert read_status(folder).state == "killed"
    child.wait()


def test_updates_merge_and_are_stamped(make_run: MakeRun) -> None:
    folder = make_run()
    before = time.time()
    update_status(folder, state=RUNNING, step=3)
    update_status(folder, step=4, last_checkpoint="checkpoint-4")
    status = update_status(folder, state=FINISHED)
    assert (status.state, status.step, status.last_checkpoint) == ("finished", 4, "checkpoint-4")
    assert before <= status.updated_at <= time.time()
    assert read_status(folder) == status


def test_claim_forgets_the_last_attempt(make_run: MakeRun) -> None:
    folder = make_run(status={"state": "failed", "reason": "boom", "failing_rank": 1, "warnings": 4, "step": 9})
    claim(folder)
    status = read_status(folder)
    assert (status.state, status.pid, status.host) == ("running", os.getpid(), HERE)
    assert (status.reason, status.failing_rank, status.warnings, status.step) == (None, None, 0, 9)


def test_who_stopped_a_run_at_the_keyboard_is_told_so() -> None:
    """The state stays `preempted` for programs; only Ctrl-C is put in other words."""
    assert told_state("preempted", "Ctrl-C") == "stopped by Ctrl-C"
    assert told_state("preempted", "SIGTERM") == "preempted"
    assert told_state("failed", "Ctrl-C") == "failed"
