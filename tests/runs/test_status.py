"""The state of a run, also after its process was killed."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rlhf_cli.errors import RunError
from rlhf_cli.runs import run_status
from rlhf_cli.runs.run_folder import RunFolder, read_json, write_json
from rlhf_cli.runs.run_status import ANOTHER_RANK, claim, newest_run, read_status, set_stop_reason, with_newest
from rlhf_cli.runs.writer_lock import only_writer
from tests.support.one_rank import write_checkpoint

MakeRun = Callable[..., RunFolder]
HERE = socket.gethostname()


def test_two_events_say_how_long_a_step_takes(make_run: MakeRun) -> None:
    events = [{"step": step, "time_s": 3.0 * step} for step in (2, 4)]
    assert [run_status.pace(make_run(f"{len(some)}", events=some))[0] for some in ([], events[:1], events)] == [
        *(None, None),
        3.0,
    ]


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
    for age, file in enumerate((unstarted.config, without.status, with_model.status)):
        os.utime(file, (1000 - age, 1000 - age))
    assert newest_run() == RunFolder(unstarted.path.resolve())
    assert newest_run(Path("runs/exp/b"), finished=False) == RunFolder(without.path.resolve())  # there is no other
    assert newest_run(finished=True) == RunFolder(with_model.path.resolve())
    os.utime(without.status, (2000, 2000))
    assert with_newest("rlhf why", " --json") == "rlhf why runs/exp/b --json"
    assert with_newest("rlhf resume", finished=False) == "rlhf resume runs/exp/c"
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
    left, status = read_json(folder.status), read_status(folder)
    assert (left["state"], status.state) == ("running", "killed")
    assert read_json(folder.status) == {**left, "state": "killed", "reason": status.reason}
    assert "without a final status" in str(status.reason)
    assert read_status(folder) == status
    with only_writer(folder) as taken_over:
        assert "which ended without a final status" in str(taken_over)
        claim(folder)
        assert (read_status(folder).state, read_status(folder).reason) == ("running", None)
        told = read_json(folder.status)
        for of_another in ({"start_ticks": -1}, {"boot": "another"}):  # a process that has the pid by now
            write_json(folder.status, {**told, **of_another})
            assert read_status(folder).state == "killed"
        for unknown in ("pid", "host"):  # without both, no process is named
            assert run_status.Status(**{"state": "running", "pid": 1, "host": HERE, unknown: None}).process is None


def test_a_run_that_somebody_works_on_is_left_as_it_is(make_run: MakeRun) -> None:
    """A resumed run has not written its state yet; a file written meanwhile is not overwritten."""
    (ended := subprocess.Popen(["true"])).wait()
    left = {"state": "running", "pid": ended.pid, "host": HERE}
    folder = make_run(status=left)
    with only_writer(folder):
        assert read_status(folder).state == "killed"
        assert read_json(folder.status)["state"] == "running"
    killed = read_status(folder)
    folder.status.write_text('{"state": "finished"}')
    run_status._write_killed(folder, killed, left)
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
    if told == "Ctrl-C at step 3":  # a sweep sends SIGINT on every second request
        assert set_stop_reason(folder, "SIGTERM").reason == "SIGTERM at step 3"


@pytest.mark.parametrize(
    ("state", "reason", "words", "rule"),
    [
        *(("preempted", "Ctrl-C", "stopped by Ctrl-C", None), ("preempted", "SIGTERM", "preempted", None)),
        *(("failed", "Ctrl-C", "failed", None), ("finished", "reward > 1", "finished", "reward > 1")),
    ],
)
def test_a_state_in_words_and_the_rule_that_ended_a_run(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch, state: str, reason: str, words: str, rule: str | None
) -> None:
    """What ends a run is flushed to the disk, and nothing before it."""
    durable: list[object] = []
    write = run_status.write_json
    monkeypatch.setattr(
        run_status, "write_json", lambda *g, **rules: [durable.append(rules.get("durable")), write(*g, **rules)]
    )
    claim(run := make_run())
    status = run_status.update_status(run, state=state, reason=reason)
    assert (run_status.describe_state(status.state, reason), status.stopped_by_rule) == (words, rule)
    assert durable == [False, True]


def test_a_full_disk_does_not_hide_how_a_run_ended(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last word is written into the file that is there; without one, or before the end, the disk is the error."""

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    begun, unbegun = make_run("begun"), make_run("unbegun")
    claim(begun)
    monkeypatch.setattr(run_status, "write_json", full)
    for run, state in ((unbegun, "failed"), (begun, "running")):
        with pytest.raises(OSError, match="No space"):
            run_status.update_status(run, state=state)
    run_status.update_status(begun, state="failed", reason="x")
    assert (read_status(begun).state, read_status(begun).reason) == ("failed", "x")
    begun.status.write_text('{"state": "no such state"}')
    with pytest.raises(RunError):
        read_status(begun)


def test_what_became_of_a_run(make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty events, whose tenth are two; a metric's last number stands, not the null after it."""
    monkeypatch.chdir(tmp_path)
    events = [{"step": step, "time_s": 2 * step, "reward": step, "loss": None} for step in range(1, 21)]
    events[3]["loss"] = 0.5
    told = {"state": "finished", "step": 7, "max_steps": 9, "reason": "enough", "job_id": "12_3", "warnings": 2}
    run = make_run(status=told, events=events)
    run.model.mkdir()
    (checkpoint := run.checkpoints / "checkpoint-3").mkdir(parents=True)
    (checkpoint / "trainer_state.json").touch()
    place = "runs/exp/one"
    assert run_status.run_result(run) == told | {
        "run": place,
        "rewards": {"reward": {"start": 1.5, "end": 19.5}},
        "metrics": {"step": 20, "time_s": 40, "reward": 20, "loss": 0.5},
        "model": f"{place}/model",
        "last_checkpoint": f"{place}/checkpoints/checkpoint-3",
    }
    run.status.write_text("{")
    assert run_status.run_result(run)["state"] == "unreadable"


def test_the_pace_is_that_of_the_last_twenty_events(make_run: MakeRun) -> None:
    run = make_run(events=[{"step": step, "time_s": 2 * step + (100 if step > 5 else 0)} for step in range(1, 26)])
    os.utime(run.metrics, (0, time.time() - 50))
    assert run_status.pace(run) == (2.0, pytest.approx(50, abs=5))
    run.metrics.write_text('{"step": 1, "time_s": 1}\n')
    assert run_status.pace(run) == (None, pytest.approx(0, abs=5))
    run.metrics.unlink()
    assert run_status.pace(run) == (None, None)


def test_many_runs_are_shown_folder_by_folder(make_run: MakeRun, tmp_path: Path) -> None:
    """The newest first, of a folder and in it; twelve runs fit into one table."""
    singles = [make_run(f"b/{place}") for place in range(12)]
    for place, run in enumerate(singles):
        os.utime(run.config, (1, 100 - place))
    assert run_status.groups_of(str(tmp_path)) == []
    job = make_run("a/sweep/x")
    (sweep := job.path.parent / "sweep.json").write_text('{"swept": ["k", 1]}')
    groups = run_status.groups_of(str(tmp_path))
    of_sweep = run_status.RunGroup(job.path.parent, (job,), True, ("k", "1"))
    assert groups == [of_sweep, run_status.RunGroup(tmp_path / "b", tuple(singles), False, ())]
    os.utime(make_run("b/oldest").config, (1, 1))
    shown = [run_status.newest_of(group) for group in run_status.groups_of(str(tmp_path))]
    assert shown == [[str(job.path.parent)], [str(run.path) for run in singles]]
    assert run_status.groups_of(str(job.path.parent)) == run_status.groups_of(str(sweep)) == []
    jobs: list[object] = [{"overrides": ["b", "c"]}, 3, {"overrides": "x"}]
    assert run_status.words_in({"overrides": ["a", "b"], "jobs": jobs}) == ["a", "b", "c"]


def test_whoever_takes_a_run_is_written_down(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what the last one left is forgotten, but for the step. A task of an array has both numbers."""
    for array, task, known in (("12", None, "7"), (None, "3", "7"), ("12", "3", "12_3")):
        for name, value in (("JOB", "7"), ("ARRAY_JOB", array), ("ARRAY_TASK", task)):
            monkeypatch.setenv(f"SLURM_{name}_ID", value or "")
        assert run_status.own_job_id() == known
    folder = make_run(status={"state": "failed", "step": 5, "reason": "x", "failing_rank": 3, "warnings": 2})
    claim(folder)
    found = read_status(folder)
    assert (found.state, found.step, found.job_id, found.pid) == ("running", 5, "12_3", os.getpid())
    assert (found.reason, found.failing_rank, found.warnings) == (None, None, 0)


def test_a_stopped_run_names_the_checkpoint_that_it_had_no_time_to_record(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert run_status.preempt(folder, "Ctrl-C").last_checkpoint is None
    write_checkpoint(folder, 3)
    assert run_status.preempt(folder, "Ctrl-C").last_checkpoint == "checkpoint-3"
