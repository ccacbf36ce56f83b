"""One run, one writer: the error names the first writer, a run that was left is taken over where that can be known."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rlhf_cli.errors import RunError
from rlhf_cli.process import boot_id, is_stopped, start_ticks, this_process
from rlhf_cli.runs import writer_lock
from rlhf_cli.runs.run_folder import RunFolder, read_json
from rlhf_cli.runs.run_status import claim, read_status
from rlhf_cli.runs.writer_lock import only_writer, read_writer

MakeRun = Callable[..., RunFolder]
HERE = socket.gethostname()
HOLD = """
import sys, time
from pathlib import Path
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.writer_lock import only_writer
with only_writer(RunFolder(Path(sys.argv[1]))):
    print("held", flush=True)
    time.sleep(60)
"""


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
    with pytest.raises(RunError, match="is being trained right now") as caught, only_writer(folder):
        pytest.fail("two writers at once")
    assert f"process {process.pid} on {HERE}, since 20" in str(caught.value.got)
    assert "ended" not in str(caught.value.got)
    assert (caught.value.where, caught.value.hint) == (str(folder.path), f"rlhf status {folder.typed}")
    assert caught.value.expected
    with pytest.raises(RunError), only_writer(folder, take_over=True):
        pytest.fail("a lock that is held is not taken over")
    record(folder, pid=os.getppid(), start_ticks=0, boot=boot_id())
    with pytest.raises(RunError, match="it has ended"), only_writer(folder):
        pytest.fail("a process that the writer started holds it")
    (folder.path / ".writer.json").unlink()
    with pytest.raises(RunError, match="unknown process"), only_writer(folder):
        pytest.fail("it has not said who it is")


@pytest.mark.fault(26)
def test_one_that_was_killed_is_taken_over(holder) -> None:
    folder, process = holder
    process.send_signal(signal.SIGKILL)
    process.wait()
    with only_writer(folder) as taken_over:
        assert taken_over is not None
        assert f"process {process.pid} on {HERE}" in taken_over
        writer = read_writer(folder)
        assert writer is not None
        assert writer.process == this_process()


@pytest.mark.parametrize("error", [None, KeyboardInterrupt(), ZeroDivisionError()])
def test_whoever_ends_leaves_no_record(make_run: MakeRun, error: BaseException | None) -> None:
    folder = make_run()
    try:
        with only_writer(folder) as taken_over:
            assert taken_over is None
            if error is not None:
                raise error
    except (KeyboardInterrupt, ZeroDivisionError):
        pass
    assert read_writer(folder) is None
    with only_writer(folder) as taken_over:
        assert taken_over is None


class TestLeft:
    """A record without a lock: what is concluded of who left it."""

    @pytest.mark.fault(26)
    def test_by_a_process_whose_pid_another_has_by_now(self, make_run: MakeRun) -> None:
        folder = make_run()
        ticks = start_ticks(os.getppid())
        assert ticks is not None
        record(folder, pid=os.getppid(), start_ticks=ticks - 1, boot=boot_id())
        with only_writer(folder) as taken_over:
            assert taken_over is not None
        record(folder, pid=os.getppid(), start_ticks=ticks, boot=boot_id())  # negative control: it is that very one
        with pytest.raises(RunError, match="being trained right now"), only_writer(folder):
            pytest.fail("it lives")

    @pytest.mark.fault(26)
    def test_by_another_machine_needs_a_word(self, make_run: MakeRun) -> None:
        folder = make_run()
        record(folder, host="elsewhere", boot="theirs")
        with pytest.raises(RunError, match="another machine") as caught, only_writer(folder):
            pytest.fail("nobody knows")
        assert "--take-over" in str(caught.value.advice)
        assert f"process {os.getpid()} on elsewhere" in str(caught.value.got)
        with only_writer(folder, take_over=True) as taken_over:
            assert taken_over is not None

    def test_by_an_earlier_start_of_the_same_job_of_slurm(self, make_run: MakeRun, monkeypatch) -> None:
        folder = make_run()
        record(folder, host="node07", boot="theirs", slurm_job="4711")
        monkeypatch.setenv("SLURM_JOB_ID", "4712")
        with pytest.raises(RunError), only_writer(folder):
            pytest.fail("another job")
        monkeypatch.setenv("SLURM_JOB_ID", "4711")
        with only_writer(folder) as taken_over:
            assert taken_over is not None

    @pytest.mark.parametrize("content", [b"", b'{"pid"', b"\xff\xfe\x00", b"[]", b'{"process": {"pid": "x"}}'])
    def test_by_nobody_knows_whom(self, make_run: MakeRun, content: bytes) -> None:
        folder = make_run()
        (folder.path / ".writer.json").write_bytes(content)
        with only_writer(folder) as taken_over:
            assert taken_over is None


def test_a_rank_that_outlives_who_held_the_lock(make_run: MakeRun) -> None:
    parent = os.getppid()
    status = {"state": "running", "pid": parent, "host": HERE, "start_ticks": start_ticks(parent), "boot": boot_id()}
    folder = make_run(status=status)
    with pytest.raises(RunError, match="being trained right now") as caught, only_writer(folder):
        pytest.fail("it writes into the folder")
    assert caught.value.hint == f"rlhf status {folder.typed}"  # `rlhf resume` takes no other name


@pytest.mark.fault(5)
def test_a_folder_that_cannot_be_written_to(make_run: MakeRun, monkeypatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(writer_lock.FileLock, "acquire", refuse)
    with pytest.raises(RunError, match="cannot be written to") as caught, only_writer(make_run()):
        pytest.fail("it is read-only")
    assert caught.value.got == "Read-only file system"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
class TestIdentity:
    def test_this_process_lives_and_its_start_is_that_of_proc(self) -> None:
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

    def test_status_knows_a_reused_pid(self, make_run: MakeRun) -> None:
        folder = make_run()
        claim(folder)
        assert read_status(folder).state == "running"
        told = read_json(folder.status)
        folder.status.write_text(json.dumps({**told, "start_ticks": told["start_ticks"] - 1}))
        assert read_status(folder).state == "killed"
        folder.status.write_text(json.dumps({**told, "boot": "another"}))
        assert read_status(folder).state == "killed"

    def test_a_process_is_stopped_until_it_is_told_to_go_on(self) -> None:
        process = subprocess.Popen(["sleep", "60"])
        try:
            for told, expected in ((signal.SIGSTOP, True), (signal.SIGCONT, False)):
                process.send_signal(told)
                until = time.monotonic() + 20
                while is_stopped(process.pid) != expected and time.monotonic() < until:
                    time.sleep(0.01)
                assert is_stopped(process.pid) == expected
        finally:
            process.kill()
            process.wait()
        assert not is_stopped(process.pid)
