"""A run's vLLM server: the run waits for it, reports its death with its last words, and ends it, however the run ends.

A stand-in takes vLLM's place, which takes its command line and speaks its endpoints; tests/launch/vllm runs vLLM.
"""

from __future__ import annotations

import io
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from rlhf_cli.errors import RankFailed
from rlhf_cli.launch import rollout_server as rollout_server_module
from rlhf_cli.launch.rollout_server import answers, free_ports, rollout_server
from rlhf_cli.plan.launch_plan import ServerPlan
from rlhf_cli.process import is_running
from tests.support.fake_server import Answer, serving
from tests.support.waiting import until

pytestmark = pytest.mark.whole

ENDS_WITHIN_S = 20.0


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ServerPlan:
    monkeypatch.setenv("STAND_IN_PIDS", str(tmp_path / "pids"))
    (port,) = free_ports(1)
    argv = (sys.executable, "-m", "tests.launch.stand_in_vllm", "serve", "org/model", "--port", str(port))
    return ServerPlan(argv, {"VLLM_SERVER_DEV_MODE": "1"}, ("0",), port, 51216, tmp_path / "vllm-server.log")


def console() -> Console:
    return Console(file=io.StringIO(), width=100)


def pids_of(server: ServerPlan) -> list[int]:
    return [int(pid) for pid in (server.log.parent / "pids").read_text().split()]


def all_end(pids: list[int]) -> None:
    until(lambda: not any(map(is_running, pids)), ENDS_WITHIN_S)


def test_it_is_waited_for_and_ends_with_the_run(server: ServerPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAND_IN_START_S", "1.5")
    drawn = io.StringIO()
    began, screen = time.monotonic(), Console(file=drawn, width=62, force_terminal=True, color_system=None)
    with rollout_server(server, screen):
        assert time.monotonic() - began > 1.5
        assert "s loadin…ights" in drawn.getvalue()
        assert answers(server.url)
        pids = pids_of(server)
        assert all(map(is_running, pids))
        assert len(pids) == 2
    assert f"vLLM answers at {server.url} after " in drawn.getvalue()
    all_end(pids)
    assert not answers(server.url)


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_it_ends_with_a_run_that_fails(server: ServerPlan, error: type[BaseException]) -> None:
    with pytest.raises(error) as caught, rollout_server(server, console()):
        raise error
    assert caught.value.args == ()
    all_end(pids_of(server))


def test_it_ends_with_a_parent_that_is_killed(server: ServerPlan) -> None:
    """kill -9 runs no `finally`: the server's keeper sees the pipe close."""
    program = (
        "import sys, time; from pathlib import Path; from rich.console import Console\n"
        "from rlhf_cli.launch.rollout_server import rollout_server\n"
        "from rlhf_cli.plan.launch_plan import ServerPlan\n"
        f"plan = ServerPlan({server.argv!r}, {server.env!r}, ('0',), {server.port}, 1, Path({str(server.log)!r}))\n"
        "with rollout_server(plan, Console()):\n    print('up', flush=True)\n    time.sleep(600)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert any(line.strip() == "up" for line in parent.stdout)
    pids = pids_of(server)
    assert all(map(is_running, pids))
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    all_end(pids)


OUT_OF_MEMORY = """\
ERROR 11-23 14:29:43 [multiproc_executor.py:944] WorkerProc failed to start.
ERROR 11-23 14:29:43 [multiproc_executor.py:944]     raise ValueError(
ERROR 11-23 14:29:43 [multiproc_executor.py:944] ValueError: Available memory on node 0 (12.34/16.59 GiB) on startup \
is less than desired CPU memory utilization (0.92, 15.26 GiB).
(EngineCore pid=31378) Exception: WorkerProc initialization failed.
(APIServer pid=27843) RuntimeError: Engine core initialization failed. See root cause above.
nanobind: leaked 4 instances!
"""
KILLED = """\
(APIServer pid=5554) WARNING 11-23 14:41:18 [core_client.py:791] MPClient: engine core exited unexpectedly; cleanup
(APIServer pid=5554) ERROR 11-23 14:41:18 [async_llm.py:843] vllm.v1.engine.exceptions.EngineDeadError: See stack trace.
nanobind: leaked 4 instances!
"""
MISSPELT = "usage: vllm serve [model_tag] [options]\nvllm: error: unrecognized arguments: --enforce-eagr\n"


@pytest.mark.parametrize(
    ("log", "cause", "hint"),
    [
        (OUT_OF_MEMORY, "ValueError: Available memory on node 0", "trainer.args.vllm_gpu_memory_utilization=0.5"),
        (KILLED, "MPClient: engine core exited unexpectedly", "`dmesg | tail`"),
        (MISSPELT, "vllm: error: unrecognized arguments: --enforce-eagr", "'~launch.vllm.args.enforce_eagr'"),
        ("loading\n" * 20, "loading\n" * 14 + "loading", "launch.rollout=hf"),
    ],
)
def test_the_cause_is_found_in_the_log(server: ServerPlan, monkeypatch, log: str, cause: str, hint: str) -> None:
    """vLLM 0.30 wrote these lines, shortened here. What an earlier start left in the log is not looked at."""
    server.log.write_text("ValueError: of an earlier start\n")
    monkeypatch.setenv("STAND_IN_DIES", log)
    with pytest.raises(RankFailed) as caught, rollout_server(server, console()):
        pytest.fail("it never was up")
    assert str(caught.value.got).startswith(cause)
    assert str(caught.value.advice or caught.value.hint).startswith(hint)
    assert len(str(caught.value.got).splitlines()) <= 15


def test_one_that_dies_under_a_run_is_named(server: ServerPlan) -> None:
    with rollout_server(server, console()) as running:
        assert running.failure() is None
        os.kill(pids_of(server)[0], signal.SIGKILL)
        failure = running.failure()
        assert running.is_lost()
    assert failure.what == "the vLLM server was killed by SIGKILL, while the run trained"
    assert failure.got == "loading weights"
    assert "memory" in str(failure.hint)


@pytest.mark.parametrize("says", ["503", "refuses"])
def test_one_whose_engine_died_is_lost_although_it_lives(server: ServerPlan, monkeypatch, says: str) -> None:
    """vLLM 0.30 answers 503, stops listening, and waits for a trainer that waits for it. Slow answers are no sign."""
    monkeypatch.setattr(rollout_server_module, "_WATCH_S", 0.05)
    monkeypatch.setattr(rollout_server_module, "GRACE_S", 0.1)
    with rollout_server(server, console()) as running, serving(Answer({}, status=503)) as dead:
        monkeypatch.setattr(rollout_server_module, "answers", lambda url: None)
        time.sleep(0.5)
        assert not running.is_lost()
        url = dead.url.removesuffix("/score") if says == "503" else f"http://127.0.0.1:{free_ports(1)[0]}"
        monkeypatch.setattr(rollout_server_module, "answers", lambda _: answers(url))
        assert running.refused.wait(10)
        failure = running.failure()
        assert failure.what.endswith("while the run trained")


def test_a_port_of_somebody_else(server: ServerPlan) -> None:
    """Another run's server would answer instead of ours."""
    with socket.socket() as somebody:
        somebody.bind(("127.0.0.1", server.port))
        somebody.listen()
        with pytest.raises(RankFailed, match="port is taken"), rollout_server(server, console()):
            pytest.fail("it was not to start")
    assert not server.log.exists()


@pytest.mark.fault(25)
def test_free_ports_differ() -> None:
    assert len(set(free_ports(3))) == 3
