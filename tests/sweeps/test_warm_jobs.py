"""Jobs that are forks of one process learn and end like processes of their own."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from rlhf_cli.errors import ConfigError, Preempted, RewardFailed, RlhfError
from rlhf_cli.runs.provenance import weights_hash
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.run_status import read_status
from rlhf_cli.sweeps import warm_processes
from rlhf_cli.sweeps.warm_processes import JobEvent, JobRequest, WarmProcesses
from tests.support.small_runs import SMALL
from tests.support.waiting import until

pytestmark = pytest.mark.whole

MISCHIEF = """
import os, random, signal
import torch

def mischief(completions, trainer_state, *, what, **kwargs):
    if trainer_state.global_step == 1:
        print("said aloud", flush=True)
        if what == "state":  # this would change a later run in the same process
            torch.manual_seed(0), random.seed(0), torch.set_default_dtype(torch.float64)
            torch.nn.functional.log_softmax = torch.nn.functional.softmax
            torch.nn.functional.silu = torch.nn.functional.relu
            os.environ["HF_HOME"] = "/nowhere"
        elif what == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif what == "raise":
            raise ValueError("one is too many")
    return [float(sum(map(ord, text)) % 7) for text in completions]
"""
WORDS = ["rewards.mine.fn=./mine.py:mischief"]


@pytest.mark.fault(28)
def test_a_job_that_fails_does_not_change_the_others(workplace: Path, sweep, train, capsys) -> None:
    """The last job has the same weights as the same run alone, and the killed process ends only its own job."""
    (workplace / "mine.py").write_text(MISCHIEF)
    code, runs = sweep(*WORDS, "rewards.mine.args.what=kill,raise,state,none", "-j2")
    assert code == 1
    assert all("said aloud" in run.console.read_text() for run in runs)
    _, none, raised, state = runs  # by their names
    assert [read_status(run).state for run in runs] == ["failed", "finished", "failed", "finished"]
    out = capsys.readouterr().out
    assert "SIGKILL" in out
    assert "one is too many" in out
    assert "Traceback" in raised.console.read_text()
    _, alone = train(*WORDS, "rewards.mine.args.what=none")
    assert weights_hash(none.model) == weights_hash(alone.model)
    assert weights_hash(none.model) != weights_hash(state.model)  # negative control: the mischief changes a run


class Server:
    """Pretends to be the process that forks the jobs, at the other end of the pipe."""

    def __init__(self, command: list[str], **rules: Any) -> None:
        self.command, self.rules, self.waited, self.is_killed = command, rules, list[float | None](), False
        self.pipe = Connection(os.dup(rules["pass_fds"][0]))

    def wait(self, timeout: float | None = None) -> int:
        self.waited.append(timeout)
        if timeout is not None and "hangs" in os.environ:
            raise subprocess.TimeoutExpired(self.command, timeout)
        return 9

    def kill(self) -> None:
        self.is_killed = True


def request(number: int, **changes: Any) -> JobRequest:
    given: dict[str, Any] = {"run": "swept/one", "argv": ["rlhf", "train"], "environment": {"MINE": "1"}}
    return JobRequest(id=number, **{"resume": False, "take_over": False} | given | changes)


@pytest.mark.parametrize("hangs", [False, True])
def test_the_sweep_and_its_server_tell_each_other_what_begins_and_ends(place: Path, monkeypatch, hangs: bool) -> None:
    monkeypatch.setattr(subprocess, "Popen", Server)
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    if hangs:
        monkeypatch.setenv("hangs", "yes")
    processes = WarmProcesses(threads=3)
    assert processes.events(0.0) == []
    processes.close()  # nothing has begun
    processes.begin(request(5))
    processes.begin(request(6))
    server: Any = processes._server
    assert [server.pipe.recv()["id"] for _ in range(2)] == [5, 6]
    own = {"OMP_NUM_THREADS": "3", "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
    own |= {"JE_ARROW_MALLOC_CONF": "background_thread:false"}
    assert own.items() <= server.rules["env"].items()
    assert server.command[-2:] == [str(os.getpid()), str(server.rules["pass_fds"][0])]
    assert server.rules["start_new_session"] is True
    for event in ((5, 700), (6, 701), (5, None, -9)):
        server.pipe.send(event)
    assert processes.events(5.0) == [JobEvent(5, 700), JobEvent(6, 701), JobEvent(5, None, -9)]
    server.rules["stdout"].close()
    output = Path(server.rules["stdout"].name)
    output.write_bytes(b"\xff\n" + b"".join(b"line %d\n" % number for number in range(30)))
    server.pipe.close()
    processes.begin(request(7))  # events() raises the reason
    with pytest.raises(RlhfError) as caught:
        processes.events(5.0)
    assert str(caught.value.got).splitlines() == ["exit code 9", *(f"line {number}" for number in range(10, 30))]
    assert caught.value.hint == "rlhf resume swept"
    processes.close()
    assert server.is_killed is hangs
    assert not output.exists()
    processes.close()
    assert len(server.waited) == 2 + hangs


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (None, 0, ""),
        (ConfigError("will not do", where="seed"), 2, "error: will not do"),
        (Preempted("SIGTERM"), 75, "stopped: SIGTERM"),
        (KeyboardInterrupt(), 75, ""),
        (ZeroDivisionError("odd"), 1, "Traceback"),
        (RewardFailed("reward 'a' failed", where="rewards.a"), 1, "ValueError: its own"),
    ],
)
def test_a_job_has_what_its_own_command_would_have_had(
    place: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException | None, code: int, said: str
) -> None:
    """It runs in a fork, for it takes the environment, the folder and the output for itself."""

    def train(folder: RunFolder, given: JobRequest) -> None:
        print("typed", *sys.argv, *sys.path, dict(os.environ), os.getcwd(), folder.path, flush=True)
        if error is not None:
            if isinstance(error, RewardFailed):
                error.__cause__ = ValueError("its own")
            error.add_note("and a note")
            raise error

    monkeypatch.setattr(warm_processes, "_train", train)
    (place / "there").mkdir()
    said_there = place / "console.txt"
    said_there.write_text("before\n")
    given = request(0, run=str(place), cwd=str(place / "there"), sys_path=["/p"])

    def becomes() -> None:
        sys.stdout, sys.stderr = (os.fdopen(number, "w", 1, closefd=False) for number in (1, 2))
        os._exit(warm_processes._run(given))

    child = multiprocessing.get_context("fork").Process(target=becomes)
    child.start()
    child.join(60)
    assert child.exitcode == code
    first, typed, *rest = said_there.read_text().splitlines()
    assert (first, typed) == ("before", f"typed rlhf train /p {{'MINE': '1'}} {place / 'there'} {place}")
    assert said in "\n".join(rest)
    assert bool(rest) is bool(said)
    assert "and a note" in rest or not isinstance(error, RlhfError)


STOPS = """
import os, signal
def stop(completions, trainer_state, *, sweep, **kwargs):
    if trainer_state.global_step == 1 and not os.path.exists("stopped"):
        open("stopped", "w").close()
        os.kill(sweep, signal.SIGINT)
    return [0.0] * len(completions)
"""


@pytest.mark.fault(20)
def test_a_signal_saves_the_running_job_and_starts_no_other(workplace: Path, sweep, capsys) -> None:
    (workplace / "mine.py").write_text(STOPS)
    words = ["rewards.mine.fn=./mine.py:stop", f"rewards.mine.args.sweep={os.getpid()}", "trainer.args.max_steps=200"]
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)}
    code, runs = sweep(*words, "seed=1,2,3")
    assert code == 75
    assert [read_status(run).state for run in runs] == ["preempted", "created", "created"]
    assert runs[0].last_checkpoint() is not None
    assert read_status(runs[0]).reason == "Ctrl-C"
    out = capsys.readouterr().out
    assert out.count("Ctrl-C: saving") == 1
    assert "`rlhf resume runs/quickstart/swept`" in out
    assert {number: signal.getsignal(number) for number in before} == before


SLOW = "import time\ndef slow(completions, **kwargs):\n    time.sleep(0.3)\n    return [0.0] * len(completions)\n"


@pytest.mark.processes
def test_a_killed_sweep_leaves_no_process_behind(workplace: Path, tmp_path: Path) -> None:
    """The jobs end, and with them the process that forked them."""
    (workplace / "mine.py").write_text(SLOW)
    words = ["rewards.mine.fn=./mine.py:slow", "trainer.args.max_steps=500", "seed=1,2", "run.name=swept", "-j2"]
    command = [sys.executable, "-m", "rlhf_cli", "train", "-m", *SMALL, *words]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True) as sweep:
        runs = [RunFolder(workplace / "runs" / "quickstart" / "swept" / f"seed={seed}") for seed in (1, 2)]
        until(lambda: all(run.metrics.is_file() for run in runs), 120)
        children = {status.pid for run in runs if (status := read_status(run)).state == "running"}
        assert len(children) == 2
        sweep.kill()
    until(lambda: [read_status(run).state for run in runs] == ["killed"] * 2, 10)
