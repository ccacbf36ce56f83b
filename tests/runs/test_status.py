"""The state of a run, also after its process was killed."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rlhf_cli.runs import run_status
from rlhf_cli.runs.run_folder import RunFolder, read_json
from rlhf_cli.runs.run_status import ANOTHER_RANK, claim, newest_run, read_status, set_stop_reason, with_newest
from rlhf_cli.runs.writer_lock import only_writer

MakeRun = Callable[..., RunFolder]
HERE = socket.gethostname()


@pytest.fixture
def dead_pid() -> int:
    """The id of a process that has been and gone."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_the_newest_run_and_the_command_with_it(
    make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert newest_run() is None
    assert with_newest("rlhf why", " --json").endswith(" && rlhf why run:quickstart --json")
    finished = {"state": "finished", "step": 1, "max_steps": 1, "updated_at": 1.0}
    with_model, without = (make_run(f"runs/exp/{name}", status=finished) for name in ("a", "b"))
    with_model.model.mkdir()
    unstarted = make_run("runs/exp/c")
    for place, file in enumerate((with_model.status, without.status, unstarted.config)):
        os.utime(file, (1000 + place, 1000 + place))
    assert newest_run() == RunFolder(unstarted.path.resolve())
    assert newest_run(finished=True) == RunFolder(with_model.path.resolve())
    os.utime(without.status, (2000, 2000))
    assert with_newest("rlhf why", " --json") == "rlhf why runs/exp/b --json"
    assert with_newest("rlhf why", finished=True) == "rlhf why runs/exp/a"
    assert with_newest("rlhf compare", all_of_it=True) == "rlhf compare runs/exp"


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
    assert "without a final status" in str(status.reason)
    assert read_status(folder) == status
    with only_writer(folder) as taken_over:
        assert "which ended without a final status" in str(taken_over)
        claim(folder)
        assert (read_status(folder).state, read_status(folder).reason) == ("running", None)


def test_a_run_that_somebody_works_on_is_left_as_it_is(make_run: MakeRun, dead_pid: int) -> None:
    """A resumed run has not written its state yet; a file written meanwhile is not overwritten."""
    folder = make_run(status={"state": "running", "pid": dead_pid, "host": HERE})
    with only_writer(folder):
        assert read_status(folder).state == "killed"
        assert read_json(folder.status)["state"] == "running"
    killed = read_status(folder)
    folder.status.write_text('{"state": "finished"}')
    run_status._write_killed(folder, killed, {"state": "running", "pid": dead_pid, "host": HERE})
    assert read_status(folder).state == "finished"


def test_a_process_that_ended_and_was_not_asked_how_is_dead(make_run: MakeRun) -> None:
    """A container's init may never reap it: the kernel keeps its pid, and kill(pid, 0) succeeds."""
    child = subprocess.Popen(["true"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    folder = make_run(status={"state": "running", "pid": child.pid, "host": HERE})
    assert read_status(folder).state == "killed"
    child.wait()


@pytest.mark.parametrize(
    ("state", "reason", "told"),
    [
        ("preempted", "SIGTERM at step 3", "Ctrl-C at step 3"),
        ("preempted", f"{ANOTHER_RANK} at step 3", "Ctrl-C at step 3"),
        ("preempted", "SIGUSR1 at step 3", "SIGUSR1 at step 3"),
        ("preempted", None, None),
        ("failed", "SIGTERM at step 3", "SIGTERM at step 3"),
    ],
)
def test_who_asked_a_run_to_stop(make_run: MakeRun, state: str, reason: str | None, told: str | None) -> None:
    folder = make_run(status={"state": state, "reason": reason})
    assert set_stop_reason(folder, "Ctrl-C").reason == read_status(folder).reason == told
    if told == "Ctrl-C at step 3":  # a sweep sends SIGINT on the second request, whoever asked
        assert set_stop_reason(folder, "SIGTERM").reason == "SIGTERM at step 3"
