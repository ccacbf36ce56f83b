"""Pretended ranks under torch's elastic agent: signals, waiting, killing, and the rank that failed first."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rlhf_cli.config.schema.run_sections import Launch
from rlhf_cli.errors import Preempted, RankFailed
from rlhf_cli.launch import elastic
from rlhf_cli.launch.stopping import raise_end
from rlhf_cli.plan.launch_plan import LaunchPlan
from rlhf_cli.process import is_running
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.run_status import FINISHED, RUNNING, read_status, update_status
from tests.support.waiting import until

pytestmark = pytest.mark.whole

COMMON = """
import json, os, pathlib, signal, sys, time
from rlhf_cli.process import PARENT, die_with, is_running
die_with(int(os.environ[PARENT]))
rank, folder = int(os.environ["RANK"]), pathlib.Path(sys.argv[1])


def tell(message):
    content = {"rank": rank, "time": time.time(), "message": message, "traceback": f"traceback of {rank}"}
    (folder / f"failure-rank{rank}.json").write_text(json.dumps(content))


"""


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    update_status(folder, state=RUNNING)
    return folder


@pytest.fixture
def two(folder: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(elastic, "_SAVING_S", 0.2)

    def run(program: str, grace_s: float = 30.0) -> None:
        plan, store = planned(program, tmp_path, folder), elastic.listening_store()
        end = elastic.run_ranks(folder, plan, Launch(grace_s=grace_s), store=store)
        raise_end(folder, end, grace_s=grace_s)

    return run


def planned(program: str, place: Path, folder: RunFolder, *more: str, common: str = COMMON) -> LaunchPlan:
    """Return the plan of two ranks that run a program, with these words after the folder's."""
    script = place / "rank.py"
    script.write_text(common + program)
    argv = (sys.executable, str(script), str(folder.path), *more)
    nothing = {"num_nodes": 1, "shared": {}, "server": None, "resume_command": "", "in_this_process": False}
    return LaunchPlan(ranks={0: None, 1: None}, argv=argv, world_size=2, log=folder.log, **nothing)


@pytest.mark.fault(22)
def test_the_rank_that_failed_is_named_and_the_one_that_hangs_is_ended(two, folder: RunFolder, capsys) -> None:
    began = time.monotonic()
    with pytest.raises(RankFailed, match="rank 1 failed: it is unhappy"):
        two("if rank == 1:\n    tell('it is unhappy')\n    sys.exit(1)\ntime.sleep(60)")
    assert time.monotonic() - began < 30
    status = read_status(folder)
    assert (status.state, status.failing_rank, status.reason) == ("failed", 1, "it is unhappy")
    err = capsys.readouterr().err
    assert ("traceback of 1" in err, "exitcode" in err) == (True, False)
    assert "failed (exitcode: 1) local_rank: 1" in folder.log.read_text()  # of torch's agent


@pytest.mark.fault(23)
def test_a_rank_that_was_killed_is_the_cause_of_what_the_other_says(two, folder: RunFolder) -> None:
    """The other rank fails and records it before the agent looks. In a real run, rank 0 was blamed."""
    program = """
me = folder / "pid"
if rank == 1:
    (folder / "written").write_text(str(os.getpid()))
    (folder / "written").rename(me)
    time.sleep(0.3)
    os.kill(os.getpid(), signal.SIGKILL)
while not me.exists() or is_running(int(me.read_text())):
    pass
tell("Connection reset by peer")
sys.exit(1)
"""
    with pytest.raises(RankFailed, match=r"rank 1 was killed by SIGKILL, most likely out of memory"):
        two(program)
    assert read_status(folder).failing_rank == 1


def at_once_ready(folder: RunFolder, act: Callable[[], None]) -> None:
    def wait() -> None:
        until(lambda: all((folder.path / f"ready-{rank}").exists() for rank in (0, 1)))
        act()

    threading.Thread(target=wait, daemon=True).start()


LISTENS = """
import subprocess
helper = subprocess.Popen(['cat'], stdin=subprocess.PIPE)  # which ends with the rank


def hear(number, frame):
    name = signal.Signals(number).name
    if rank == 0:
        (folder / "status.json").write_text(json.dumps({"state": "preempted", "reason": name}))
    time.sleep(0.3)
    (folder / f"heard-{rank}").write_text(f"{name} {helper.poll()}")
    sys.exit(75)


signal.signal(signal.SIGTERM, hear)
(folder / f"ready-{rank}").touch()
time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.fault(17, 20)
def test_a_signal_is_handed_to_every_rank(two, folder: RunFolder, number: signal.Signals, capsys) -> None:
    """Ctrl-C, too, as SIGTERM: the ranks are in sessions of their own and no terminal tells them anything.

    A rank's helper, such as a data loader's process or an isolated reward, lives on until the rank has saved.
    """
    at_once_ready(folder, lambda: os.kill(os.getpid(), number))
    with pytest.raises(Preempted):
        two(LISTENS)
    assert [(folder.path / f"heard-{rank}").read_text() for rank in (0, 1)] == ["SIGTERM None"] * 2
    key = "Ctrl-C" if number == signal.SIGINT else "SIGTERM"
    assert (read_status(folder).state, read_status(folder).reason) == ("preempted", key)
    assert capsys.readouterr().err.count(f"{key}: ") == 1


DEAF = LISTENS.replace("signal.SIGTERM, hear", "signal.SIGTERM, signal.SIG_IGN")


@pytest.mark.parametrize(("grace_s", "requests"), [(0.2, 1), (40.0, 2)])
@pytest.mark.fault(19, 20)
def test_deaf_ranks_are_ended_after_their_grace_or_a_moment_after_a_second_request(
    two, folder: RunFolder, grace_s: float, requests: int
) -> None:
    def ask() -> None:
        for _ in range(requests):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.3)

    at_once_ready(folder, ask)
    began = time.monotonic()
    with pytest.raises(Preempted):
        two(DEAF, grace_s=grace_s)
    assert time.monotonic() - began < 30
    assert read_status(folder).reason == f"it did not end within {grace_s:g} s of the request"


@pytest.mark.fault(21)
def test_the_ranks_know_their_place_listen_to_one_address_and_a_closed_terminal_ends_none(two, folder) -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGHUP, lambda number, _: heard.append(number))
    update_status(folder, state=FINISHED)
    at_once_ready(folder, lambda: os.kill(os.getpid(), signal.SIGHUP))
    program = """
import psutil
names = ("LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE", "MASTER_ADDR", "TORCHELASTIC_USE_AGENT_STORE")
sockets = [one for one in psutil.Process(os.getppid()).net_connections(kind="tcp") if one.status == "LISTEN"]
addresses = [one.laddr.ip for one in sockets if str(one.laddr.port) == os.environ["MASTER_PORT"]]
(folder / f"place-{rank}").write_text(json.dumps([*(os.environ[name] for name in names), addresses]))
(folder / f"ready-{rank}").touch()
time.sleep(1)
"""
    try:
        two(program)
        assert heard == []
        os.kill(os.getpid(), signal.SIGHUP)  # negative control: the handler of before is back
        assert heard == [signal.SIGHUP]
    finally:
        signal.signal(signal.SIGHUP, before)
    for rank in (0, 1):
        place = json.loads((folder.path / f"place-{rank}").read_text())
        assert place == [str(rank), "0", "2", "127.0.0.1", "True", ["127.0.0.1"]]
    assert "TORCHELASTIC_SIGNALS_TO_HANDLE" not in os.environ


@pytest.mark.fault(17)
def test_no_rank_outlives_the_process_that_started_it(folder: RunFolder, tmp_path: Path) -> None:
    parent = f"""
from pathlib import Path
from rlhf_cli.config.schema.run_sections import Launch
from rlhf_cli.launch import elastic
from rlhf_cli.runs.run_folder import RunFolder
from tests.launch.test_elastic import planned
folder = RunFolder(Path({str(folder.path)!r}))
plan = planned("(folder / f'pid-{{rank}}').write_text(str(os.getpid()))\\ntime.sleep(60)", Path.cwd(), folder)
elastic.run_ranks(folder, plan, Launch(), store=elastic.listening_store())
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [os.getcwd(), *sys.path]))}
    process = subprocess.Popen([sys.executable, "-c", parent], cwd=tmp_path, env=environment)
    files = [folder.path / f"pid-{rank}" for rank in (0, 1)]
    pids = [int(until(lambda file=file: file.exists() and file.read_text())) for file in files]
    assert all(map(is_running, pids))
    process.kill()
    process.wait()
    until(lambda: not any(map(is_running, pids)))
