"""One run, one writer: the error names the first writer, a run that was left is taken over where that can be known."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from rlhf_cli.errors import RunError
from rlhf_cli.process import boot_id, is_stopped, start_ticks, this_process
from rlhf_cli.runs import writer_lock
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.writer_lock import only_writer, read_writer
from tests.support.waiting import until

MakeRun = Callable[..., RunFolder]
HERE = socket.gethostname()
LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
HOLD = """
import sys, time
from pathlib import Path
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.writer_lock import only_writer
with only_writer(RunFolder(Path(sys.argv[1]))):
    print("held", flush=True)
    time.sleep(60)
"""


def refused(folder: RunFolder, match: str | None = None, **words: Any) -> RunError:
    with pytest.raises(RunError, match=match) as caught, only_writer(folder, **words):
        pytest.fail("two writers at once")
    return caught.value


def taken_over(folder: RunFolder, **words: Any) -> str | None:
    """Return the message, which names the writer before; meanwhile the lock names this process, and then no one."""
    with only_writer(folder, **words) as said:
        writer = read_writer(folder)
        assert writer is not None
        assert writer.process == this_process()
    assert read_writer(folder) is None
    return said


@pytest.fixture
def holder(make_run: MakeRun) -> Iterator[tuple[RunFolder, subprocess.Popen[str]]]:
    """A run, and another process that holds it."""
    folder = make_run()
    process = subprocess.Popen([sys.executable, "-c", HOLD, folder.path], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    yield folder, process
    process.kill()
    process.wait()
    process.stdout.close()


def record(folder: RunFolder, **fields: Any) -> None:
    """What a writer leaves that was killed."""
    known = {"since": 0.0, "slurm_job": fields.pop("slurm_job", None)}
    process = {"pid": os.getpid(), "host": HERE, "start_ticks": None, "boot": None, **fields}
    (folder.path / ".writer.json").write_text(json.dumps({**known, "process": process}))


@pytest.mark.fault(26)
def test_a_second_writer_is_refused_and_told_of_the_first(holder) -> None:
    folder, process = holder
    error = refused(folder, "is being trained right now")
    assert f"process {process.pid} on {HERE}, since 20" in str(error.got)
    assert "ended" not in str(error.got)
    assert (error.where, error.hint) == (str(folder.path), f"rlhf status {folder.typed}")
    assert error.expected
    refused(folder, take_over=True)  # a lock that is held is not taken over
    record(folder, pid=os.getppid(), start_ticks=0, boot=boot_id())
    refused(folder, "it has ended")  # a process that the writer started holds it
    (folder.path / ".writer.json").unlink()
    refused(folder, "unknown process")  # it has not said who it is


@pytest.mark.fault(26)
def test_one_that_was_killed_is_taken_over(holder) -> None:
    folder, process = holder
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert f"process {process.pid} on {HERE}" in str(taken_over(folder))


@pytest.mark.parametrize("error", [None, KeyboardInterrupt(), ZeroDivisionError()])
def test_whoever_ends_leaves_no_record(make_run: MakeRun, error: BaseException | None) -> None:
    folder = make_run()
    with suppress(KeyboardInterrupt, ZeroDivisionError), only_writer(folder) as said:
        assert said is None
        if error is not None:
            raise error
    assert read_writer(folder) is None
    assert taken_over(folder) is None


# A record without a lock: what is concluded of who left it.


@pytest.mark.fault(26)
def test_a_record_of_a_process_whose_pid_another_has_by_now(make_run: MakeRun) -> None:
    folder = make_run()
    ticks = start_ticks(os.getppid())
    assert ticks is not None
    for other in ({"start_ticks": ticks - 1}, {"boot": "another"}):
        record(folder, **{"pid": os.getppid(), "start_ticks": ticks, "boot": boot_id(), **other})
        assert taken_over(folder) is not None
    record(folder, pid=os.getppid(), start_ticks=ticks, boot=boot_id())  # negative control: it is that very one
    refused(folder, "being trained right now")


@pytest.mark.fault(26)
def test_a_record_of_another_machine_needs_a_word(make_run: MakeRun) -> None:
    folder = make_run()
    record(folder, host="elsewhere", boot="theirs")
    error = refused(folder, "another machine")
    assert "--take-over" in str(error.advice)
    assert f"process {os.getpid()} on elsewhere" in str(error.got)
    assert taken_over(folder, take_over=True) is not None


def test_a_record_of_an_earlier_start_of_the_same_job_of_slurm(make_run: MakeRun, monkeypatch) -> None:
    folder = make_run()
    record(folder, host="node07", boot="theirs", slurm_job="4711")
    monkeypatch.setenv("SLURM_JOB_ID", "4712")
    refused(folder)
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    assert taken_over(folder) is not None


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00", b"[]", b'{"process": {"pid": "x"}}'])
def test_a_damaged_record_is_of_nobody(make_run: MakeRun, content: bytes) -> None:
    folder = make_run()
    (folder.path / ".writer.json").write_bytes(content)
    assert taken_over(folder) is None


def test_a_rank_that_outlives_who_held_the_lock(make_run: MakeRun) -> None:
    parent = os.getppid()
    status = {"state": "running", "pid": parent, "host": HERE, "start_ticks": start_ticks(parent), "boot": boot_id()}
    folder = make_run(status=status)
    error = refused(folder, "being trained right now")
    assert error.hint == f"rlhf status {folder.typed}"  # `rlhf resume` takes no other name


@pytest.mark.fault(5)
def test_a_folder_that_cannot_be_written_to(make_run: MakeRun, monkeypatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(writer_lock.FileLock, "acquire", refuse)
    assert refused(make_run(), "cannot be written to").got == "Read-only file system"


@LINUX
def test_this_process_lives_and_its_start_is_that_of_proc() -> None:
    """Clock ticks since boot (proc(5), field 22), counted here from the clocks: to a few seconds the same."""
    me = this_process()
    assert me.is_alive()
    assert me.start_ticks is not None
    up_s = float(Path("/proc/uptime").read_text().split()[0])
    age_s = up_s - me.start_ticks / os.sysconf("SC_CLK_TCK")
    told = subprocess.run(["ps", "-o", "etimes=", "-p", str(os.getpid())], capture_output=True, text=True)
    if told.returncode == 0:
        assert age_s == pytest.approx(float(told.stdout), abs=3)
    assert 0 <= age_s < up_s


@LINUX
def test_a_process_is_stopped_until_it_is_told_to_go_on() -> None:
    process = subprocess.Popen(["sleep", "60"])
    try:
        for told, expected in ((signal.SIGSTOP, True), (signal.SIGCONT, False)):
            process.send_signal(told)
            until(lambda expected=expected: is_stopped(process.pid) == expected, 20)
    finally:
        process.kill()
        process.wait()
    assert not is_stopped(process.pid)
