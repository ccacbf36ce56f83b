"""Two runs never train on one GPU, within a sweep or in two commands, under any name of the GPU."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rlhf_cli.cli import main
from rlhf_cli.launch.gpu_locks import holders_of, take
from rlhf_cli.plan.preflight import preflight
from rlhf_cli.plan.prepare import prepare
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.sweeps import run_jobs
from rlhf_cli.sweeps.run_jobs import slot_for
from rlhf_cli.sweeps.sweep_folder import ReadyJob
from tests.support.small_runs import SMALL

ON_GPUS = [word for word in SMALL if word != "launch=cpu"]


def job(place: Path, *words: str) -> ReadyJob:
    prepared = prepare(["+exp=quickstart", "track=none", *words])
    plan = preflight(prepared.experiment, prepared.composed)
    return ReadyJob(name="one", folder=RunFolder(place), experiment=prepared.experiment, plan=plan)


@contextmanager
def another_process_holds(gpu: str, run: str = "runs/theirs") -> Iterator[int]:
    program = (
        "import sys\nfrom rlhf_cli.launch.gpu_locks import take\n"
        f"held = take([{gpu!r}], {run!r})\nprint(held is not None, flush=True)\nsys.stdin.read()\n"
    )
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "True\n"
        yield process.pid
        process.kill()


def test_each_job_gets_its_own_gpus_and_the_next_waits(place: Path, have_gpus) -> None:
    have_gpus(4)
    one, two = (job(place, f"launch.processes={processes}") for processes in (1, 2))
    slots: list[Any] = [slot_for(two, 1), slot_for(two, 1)]
    assert [environment["CUDA_VISIBLE_DEVICES"] for _, environment in slots] == ["0,1", "2,3"]
    assert slot_for(one, 1) is None
    slots[0][0].release()
    third: Any = slot_for(one, 1)
    assert third[1]["CUDA_VISIBLE_DEVICES"] == "0"


def test_a_job_has_the_gpus_that_its_accelerate_file_names(place: Path, have_gpus, monkeypatch) -> None:
    have_gpus(4)
    monkeypatch.setattr(run_jobs, "take", lambda gpus, run: taken.append(gpus) or SimpleNamespace(gpus=gpus))
    taken: list[Any] = []
    pinned = replace(one := job(place), plan=replace(one.plan, accelerate_env={"CUDA_VISIBLE_DEVICES": "3"}))
    assert slot_for(pinned, 1) is not None
    assert taken == [("3",)]


def test_a_gpu_has_one_lock_for_its_number_and_its_uuid(have_gpus, monkeypatch) -> None:
    """CUDA accepts both, and only the UUID distinguishes the GPU 0 of two containers."""
    have_gpus(2)
    held: Any = take(["1"], "runs/one")
    assert take(["GPU-1"], "runs/two") is None
    other: Any = take(["0"], "runs/two")
    other.release()
    monkeypatch.setenv("RLHF_SHARE_GPUS", "1")
    assert take(["1"], "runs/two") is not None
    held.release()


def test_a_single_run_is_refused_and_the_holder_named(workplace: Path, have_gpus, capsys) -> None:
    have_gpus(1)
    for name in ([], ["run.name=mine"]):
        with another_process_holds("0") as pid:
            assert main(["train", *ON_GPUS, *name]) == 2
        error = capsys.readouterr().err
        assert f"GPU 0: process {pid}, runs/theirs" in error
        assert "CUDA_VISIBLE_DEVICES" in error
        assert not list(workplace.glob("runs/*/*"))


SEEN = """
import glob, json, os, time, torch
def seen(completions, **kwargs):
    open(f"begun-{os.getpid()}", "w").close()
    until = time.monotonic() + 30
    while len(glob.glob("begun-*")) < 2 and time.monotonic() < until:
        time.sleep(0.01)  # the first waits for the second
    gpu, of_server = os.environ.get("CUDA_VISIBLE_DEVICES"), len(os.listdir(f"/proc/{os.getppid()}/task"))
    had = [torch.get_num_threads(), of_server, torch.cuda.is_initialized()]
    with open("seen.jsonl", "a") as stream:
        stream.write(json.dumps([time.monotonic(), os.getpid(), gpu, had]) + chr(10))
    return [0.0] * len(completions)
"""


@pytest.mark.whole
def test_a_sweep_never_has_two_runs_on_one_gpu(workplace: Path, have_gpus, monkeypatch) -> None:
    """Start three runs at a time on two GPUs, which are listed but do not exist, so that the runs use the CPU.

    Each run sees one GPU; two run side by side, and the third starts after the run on the same GPU has ended. Three
    cores for three runs are one thread each. The process that forks them has one thread (a lock of another thread
    would stay locked in the fork) and has not initialised CUDA.
    """
    have_gpus(2)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(3)))
    (workplace / "mine.py").write_text(SEEN)
    words = ["rewards.mine.fn=./mine.py:seen", "rewards.mine.trial=false", "launch.processes=1"]
    assert main(["train", "-m", *ON_GPUS, *words, "run.name=swept", "seed=1,2,3", "-j3"]) == 0
    seen = [json.loads(line) for line in (workplace / "seen.jsonl").read_text().splitlines()]
    assert {tuple(had) for *_, had in seen} == {(1, 1, False)}
    spans = {(gpu, pid): [at for at, other, *_ in seen if other == pid] for _, pid, gpu, _ in seen}
    assert len(spans) == 3
    assert {gpu for gpu, _ in spans} == {"0", "1"}
    (first, second) = sorted(times for (gpu, _), times in spans.items() if sum(gpu == other for other, _ in spans) == 2)
    assert max(first) < min(second)
    one, two, _ = sorted(spans.values())
    assert two[0] < one[-1]  # side by side
    assert holders_of(["0", "1"]) == []


def test_a_sweep_waits_for_a_gpu_names_its_holder_and_can_be_stopped(workplace, have_gpus, capsys, monkeypatch) -> None:
    """It checks five times a second and sleeps in between."""
    have_gpus(1)
    looks: list[float] = []

    def look(wanted: ReadyJob, threads: int | None) -> object:
        looks.append(time.monotonic())
        return slot_for(wanted, threads)

    monkeypatch.setattr(run_jobs, "slot_for", look)

    def stop_when_it_waits() -> None:
        while not Path("runs/quickstart/swept/seed=2/status.json").exists():
            time.sleep(0.1)
        time.sleep(2.0)
        os.kill(os.getpid(), signal.SIGTERM)

    with another_process_holds("0") as pid:
        threading.Thread(target=stop_when_it_waits).start()
        assert main(["train", "-m", *ON_GPUS, "launch.processes=1", "run.name=swept", "seed=1,2"]) == 75
    assert len(looks) > 2
    assert all(later - earlier > 0.19 for earlier, later in itertools.pairwise(looks))
    out = capsys.readouterr().out
    assert f"seed=1 waits for a GPU. GPU 0: process {pid}, runs/theirs" in out
    assert out.count("waits for a GPU") == 1
    assert "begins" not in out
