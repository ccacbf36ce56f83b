"""A run's vLLM server: waited for, its death told with its last words, ended with the run in whatever way that ends.

vLLM itself was never run here: a stand-in takes its place, which takes its command line and speaks its endpoints.
"""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from rlhf_cli.errors import RankFailed
from rlhf_cli.launch.rollout_server import free_ports, is_healthy, rollout_server
from rlhf_cli.plan.rollout_server_plan import ServerPlan

ENDS_WITHIN_S = 20.0


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ServerPlan:
    monkeypatch.setenv("STAND_IN_PIDS", str(tmp_path / "pids"))
    (port,) = free_ports(1)
    argv = (sys.executable, "-m", "tests.launch.stand_in_vllm", "serve", "org/model", "--port", str(port))
    return ServerPlan(argv, {"VLLM_SERVER_DEV_MODE": "1"}, ("0",), port, 51216, tmp_path / "vllm-server.log")


def console() -> Console:
    return Console(file=io.StringIO(), width=100)


def said(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def pids_of(server: ServerPlan) -> list[int]:
    return [int(pid) for pid in (server.log.parent / "pids").read_text().split()]


def is_there(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def all_gone(pids: list[int]) -> bool:
    deadline = time.monotonic() + ENDS_WITHIN_S
    while time.monotonic() < deadline:
        if not any(is_there(pid) for pid in pids):
            return True
        time.sleep(0.1)
    return False


def test_it_is_waited_for_and_ends_with_the_run(server: ServerPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAND_IN_START_S", "1.5")
    began, screen = time.monotonic(), console()
    with rollout_server(server, screen):
        assert time.monotonic() - began > 1.5
        assert is_healthy(server.url)
        pids = pids_of(server)
        assert all(is_there(pid) for pid in pids)
        assert len(pids) == 2
    assert f"vLLM answers at {server.url} after " in said(screen)
    assert all_gone(pids)
    assert not is_healthy(server.url)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, RuntimeError])
def test_it_ends_with_a_run_that_fails(server: ServerPlan, error: type[BaseException]) -> None:
    with pytest.raises(error) as caught, rollout_server(server, console()):
        raise error
    assert not getattr(caught.value, "__notes__", [])
    assert all_gone(pids_of(server))


def test_it_ends_with_a_parent_that_is_killed(server: ServerPlan) -> None:
    """kill -9 runs no `finally`: the server's keeper sees the pipe close."""
    program = (
        "import sys, time; from pathlib import Path; from rich.console import Console\n"
        "from rlhf_cli.launch.rollout_server import rollout_server\n"
        "from rlhf_cli.plan.rollout_server_plan import ServerPlan\n"
        f"plan = ServerPlan({server.argv!r}, {server.env!r}, ('0',), {server.port}, 1, Path({str(server.log)!r}))\n"
        "with rollout_server(plan, Console()):\n    print('up', flush=True)\n    time.sleep(600)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    assert any(line.strip() == "up" for line in parent.stdout)
    pids = pids_of(server)
    assert all(is_there(pid) for pid in pids)
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    assert all_gone(pids)


def test_one_that_dies_is_told_with_its_last_words(server: ServerPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAND_IN_DIES", "ValueError: 12 heads cannot be divided by 5")
    died = pytest.raises(RankFailed, match="the vLLM server ended with code 3")
    with died as caught, rollout_server(server, console()):
        pytest.fail("it never was up")
    assert caught.value.got == "ValueError: 12 heads cannot be divided by 5"
    assert caught.value.where == os.path.relpath(server.log)


def test_one_that_dies_under_a_run_is_named_in_what_the_run_failed_of(server: ServerPlan) -> None:
    def train() -> None:
        os.kill(pids_of(server)[0], signal.SIGKILL)
        assert all_gone(pids_of(server))
        time.sleep(1)  # the keeper follows
        raise ConnectionError("refused")

    with pytest.raises(ConnectionError) as caught, rollout_server(server, console()):
        train()
    (note,) = caught.value.__notes__
    assert note == "the vLLM server had ended by itself, with code 137:\nloading weights"


@pytest.mark.fault(25)
def test_free_ports_differ() -> None:
    assert len(set(free_ports(3))) == 3
