"""How a sweep starts, stops and counts its jobs, whose processes are pretended here."""

from __future__ import annotations

import os
import signal
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.run_status import claim, read_status, update_status
from rlhf_cli.sweeps import SweepOptions, run_jobs
from rlhf_cli.sweeps.run_jobs import JobsToCome, end_status, threads_of_each
from rlhf_cli.sweeps.sweep_folder import ReadyJob
from rlhf_cli.sweeps.warm_processes import JobEvent, JobRequest


@pytest.mark.parametrize(
    ("at_once", "asked", "threads"),
    [(1, "3", None), (2, "", 4), (3, "", 2), (9, "", 1), (2, "3", 3), (2, "6", 4), (2, "many", 4)],
)
def test_jobs_share_the_cores_and_take_no_more_threads_than_asked_for(
    monkeypatch: pytest.MonkeyPatch, at_once: int, asked: str, threads: int | None
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setenv("OMP_NUM_THREADS", asked)
    assert threads_of_each(at_once) == threads
    monkeypatch.delattr(os, "sched_getaffinity")  # as on macOS
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    assert threads_of_each(at_once) == threads


def status_of(folder: Path, state: str, reason: str | None = None) -> RunFolder:
    folder.mkdir(parents=True, exist_ok=True)
    claim(run := RunFolder(folder))
    update_status(run, state=state, reason=reason)
    return run


@pytest.mark.parametrize(
    ("written", "code", "asked_by", "state", "reason"),
    [
        (("running", None), -9, None, "failed", "SIGKILL, probably for lack of memory"),
        (("running", None), -15, None, "failed", "killed by SIGTERM"),
        (("preempted", None), -11, None, "failed", "killed by SIGSEGV"),
        (("running", None), 3, None, "failed", "exit code 3: the last word"),
        (("running", None), 75, None, "preempted", "the last word"),  # a run with exit code 75 can be resumed
        (("running", None), 1, "Ctrl-C", "failed", "exit code 1: the last word"),
        (("running", None), -11, "Ctrl-C", "failed", "killed by SIGSEGV"),
        *((("running", None), code, "Ctrl-C", "preempted", "Ctrl-C") for code in (-15, -2, -9, 75)),
        (("finished", None), -9, None, "finished", None),
        (("failed", "no memory"), 0, None, "failed", "no memory"),
        (("preempted", "SIGTERM, saved"), 75, "Ctrl-C", "preempted", "Ctrl-C, saved"),
        (("preempted", "SIGTERM, saved"), 75, None, "preempted", "SIGTERM, saved"),
    ],
)
def test_how_a_job_ended_is_what_it_wrote_or_what_its_process_shows(
    tmp_path: Path, written: tuple[str, str | None], code: int, asked_by: str | None, state: str, reason: str | None
) -> None:
    run = status_of(tmp_path / "run", *written)
    run.console.write_bytes(b"first \xff\n  the last word \n\n")
    ended = end_status(run, code, asked_by=asked_by)
    assert (ended.state, read_status(run).state) == (state, state)
    assert ended.reason is None if reason is None else reason in str(ended.reason)
    assert ("memory" in str(ended.reason)) is (reason is not None and "memory" in reason)


def test_without_a_readable_status_or_any_output_a_job_has_failed(tmp_path: Path) -> None:
    run = status_of(tmp_path / "run", "running")
    assert "no output" in str(end_status(run, 1, asked_by=None).reason)
    run.status.write_text("{")
    assert end_status(run, 0, asked_by=None).state == "failed"


class Processes:
    """Pretends to run each job to an end: a state that it writes, and an exit code."""

    def __init__(self, *ends: tuple[str, int]) -> None:
        self.ends, self.begun, self.running, self.most, self.is_closed = list(ends), list[JobRequest](), 0, 0, False
        self._events: list[JobEvent] = []

    def begin(self, request: JobRequest) -> None:
        state, code = self.ends[len(self.begun)]
        self.begun.append(request)
        self.running += 1
        self.most = max(self.most, self.running)
        status_of(Path(request.run), state)
        self._events += [JobEvent(request.id, 1000 + request.id), JobEvent(request.id, None, code)]

    def events(self, timeout_s: float) -> list[JobEvent]:
        found, self._events = self._events[:1], self._events[1:]
        self.running -= sum(event.pid is None for event in found)
        return found

    def close(self) -> None:
        self.is_closed = True


class Pretended:
    """A sweep of jobs without GPUs; `released` counts the slots given back, `sent` the signals by process."""

    must_save_by: str | None = None

    def __init__(self, place: Path, monkeypatch: pytest.MonkeyPatch, *ends: tuple[str, int]) -> None:
        self.processes, self.released, self.sent = Processes(*ends), list[str](), list[tuple[int, int]]()
        self._place = place
        slot = SimpleNamespace(release=lambda: self.released.append("a slot")), {"ITS": "own"}
        monkeypatch.setattr(run_jobs, "slot_for", lambda job, threads: slot)
        self.threads: list[int | None] = []
        monkeypatch.setattr(
            run_jobs, "WarmProcesses", lambda *, threads: self.threads.append(threads) or self.processes
        )
        monkeypatch.setattr(os, "kill", lambda pid, number: self.sent.append((pid, number)) if number else None)

    def job(self, number: int) -> ReadyJob:
        nothing: Any = None
        launch = {"must_save_by": self.must_save_by, "grace_s": 120.0}
        experiment: Any = SimpleNamespace(rewards={}, launch=SimpleNamespace(**launch))
        folder = RunFolder(self._place / f"job={number}")
        return ReadyJob(name=f"job={number}", folder=folder, experiment=experiment, plan=nothing, resume=number == 1)

    def runs(self, at_once: int = 1) -> int:
        jobs = [self.job(number) for number in range(len(self.processes.ends))]
        return run_jobs.run_jobs(Console(quiet=True), jobs, SweepOptions(at_once))

    def begun_runner(self, jobs: int) -> run_jobs._Runner:
        waiting = [self.job(number) for number in range(jobs)]
        runner = run_jobs._Runner(Console(quiet=True), waiting, SweepOptions(jobs), JobsToCome())
        assert runner._may_begin()
        assert runner._begin_next()
        return runner


FINE, WRONG, CRASHED, SAVED = ("finished", 0), ("failed", 2), ("failed", 1), ("preempted", 75)


@pytest.mark.parametrize(
    ("ends", "code"),
    [
        ([FINE, FINE], 0),
        ([FINE, WRONG], 2),
        ([WRONG, CRASHED], 1),
        ([CRASHED, SAVED], 1),
        ([WRONG, SAVED], 75),
        ([("failed", 0)], 1),
        ([("running", 7)], 1),
        ([("finished", -9)], 0),
    ],
)
def test_the_worst_end_of_a_job_is_that_of_the_sweep(
    place: Path, monkeypatch: pytest.MonkeyPatch, ends: list[tuple[str, int]], code: int
) -> None:
    """A crash is worse than a stop, which can be resumed, and that than a mistake of the user's."""
    sweep = Pretended(place, monkeypatch, *ends)
    assert sweep.runs() == code
    assert len(sweep.released) == len(ends)
    assert sweep.processes.is_closed
    assert [request.id for request in sweep.processes.begun] == list(range(len(ends)))
    assert sweep.sent == []


@pytest.mark.parametrize(("left_s", "begun", "code"), [(600, 2, 0), (60, 0, 75), (-60, 0, 75)])
def test_no_job_begins_in_the_grace_period_of_its_deadline(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], left_s: int, begun: int, code: int
) -> None:
    """It would only start, save and stop: two minutes of grace are in `Pretended.job`."""
    sweep = Pretended(place, monkeypatch, FINE, FINE)
    sweep.must_save_by = (datetime.now().astimezone() + timedelta(seconds=left_s)).isoformat()
    jobs = [sweep.job(number) for number in range(2)]
    assert run_jobs.run_jobs(Console(), jobs, SweepOptions(at_once=2)) == code
    assert len(sweep.processes.begun) == begun
    assert capsys.readouterr().out.count("leaves no time for 2 runs") == (begun == 0)


def test_where_a_job_cannot_be_made_or_begun_the_server_ends_and_the_gpus_of_the_others_are_free(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = Pretended(place, monkeypatch, FINE)  # which has no end for the second job
    with pytest.raises(IndexError):
        run_jobs.run_jobs(Console(), [sweep.job(number) for number in range(2)], SweepOptions(at_once=2))
    assert len(sweep.released) == 2
    sweep = Pretended(place, monkeypatch)
    monkeypatch.setattr(JobsToCome, "next_job", lambda self: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        sweep.runs()
    assert sweep.processes.is_closed


@pytest.mark.parametrize(("at_once", "most"), [(1, 1), (2, 2), (9, 4)])
def test_no_more_jobs_run_at_a_time_than_asked_for(place: Path, monkeypatch, at_once: int, most: int) -> None:
    clocks: list[str] = []
    monkeypatch.setattr(ReadyJob, "begins", lambda job: clocks.append(job.name))
    sweep = Pretended(place, monkeypatch, *[FINE] * 4)
    assert sweep.runs(at_once) == 0
    assert sorted(clocks) == [f"job={number}" for number in range(4) for _ in range(2)]  # again with its process
    assert sweep.processes.most == most
    monkeypatch.setattr(run_jobs, "threads_of_each", lambda at_once: at_once)
    to_come: Any = SimpleNamespace(num_to_come=3)
    for jobs, later in (([], JobsToCome()), ([], to_come), ([sweep.job(0)], to_come)):
        run_jobs._Runner(Console(quiet=True), jobs, SweepOptions(at_once), later)
    assert sweep.threads[1:] == [1, min(at_once, 3), min(at_once, 4)]
    first, second, *_ = sweep.processes.begun
    assert (first.run, first.resume, second.resume, first.take_over) == (str(place / "job=0"), False, True, False)
    assert (first.cwd, first.environment) == (str(place), {"ITS": "own"})


def test_each_request_to_stop_is_stronger_and_reaches_jobs_that_begin_late(place: Path, monkeypatch) -> None:
    sweep = Pretended(place, monkeypatch, FINE, FINE)
    runner = sweep.begun_runner(2)
    said: list[str] = []
    monkeypatch.setattr(runner._display, "say", lambda line, **_: said.append(line))
    runner._pids[0] = 77
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGTERM, signal.SIGTERM):
        runner.ask(number)
        runner._stop_where_asked()
    assert sweep.sent == [(77, signal.SIGTERM), (77, signal.SIGINT), (77, signal.SIGKILL)]
    assert [line.partition(":")[0] for line in said[-3:]] == ["SIGTERM", "Ctrl-C", "SIGTERM"]
    assert "stopping the run in progress now" in said[-2]
    assert runner.run() == 75
    assert sweep.sent[3:] == [(1000, signal.SIGKILL)]
    assert len(sweep.processes.begun) == 1


@pytest.mark.parametrize(("end", "code"), [(FINE, 0), (CRASHED, 1), (SAVED, 75)])
def test_a_request_to_stop_counts_only_if_it_left_something_to_do(
    place: Path, monkeypatch: pytest.MonkeyPatch, end: tuple[str, int], code: int
) -> None:
    sweep = Pretended(place, monkeypatch, end)
    runner = sweep.begun_runner(1)
    runner.ask(signal.SIGTERM)
    assert runner.run() == code


def test_a_job_that_should_stop_is_asked_to_save_and_counts_as_done(place: Path, monkeypatch) -> None:
    """As a search stops a trial; its last jobs are known only when the first have ended."""

    class ToCome(JobsToCome):
        asked = 0

        @property
        def num_to_come(self) -> int:
            return 2 - self.asked

        def next_job(self) -> ReadyJob | None:
            self.asked += 1
            return sweep.job(self.asked) if self.asked <= 2 else None

        def should_stop(self, job: ReadyJob) -> bool:
            return job.name == "job=2"

        def ended(self, job: ReadyJob, status: Any) -> Any:
            return update_status(job.folder, state="pruned") if status.state == "preempted" else status

    sweep = Pretended(place, monkeypatch, FINE, SAVED)
    assert run_jobs.run_jobs(Console(quiet=True), [], SweepOptions(), ToCome()) == 0
    assert sweep.sent == [(1001, signal.SIGTERM)]
