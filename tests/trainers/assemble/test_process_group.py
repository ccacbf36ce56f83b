"""gloo waits for a hanging rank as long as `ddp_timeout` says: transformers tells it to every backend but gloo."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed

from rlhf_cli.config import trl_args
from rlhf_cli.launch.rollout_server import free_ports
from rlhf_cli.trainers.assemble.trl_config import start_process_group

TIMEOUT_S, HANGS_S = 5, 60
RANK = f"""
import os, time
from accelerate import PartialState
from rlhf_cli.trainers.assemble.trl_config import start_process_group
from rlhf_cli.config import trl_args
start_process_group(trl_args.trainer("GRPOTrainer"), {{"ddp_timeout": {TIMEOUT_S}}})
state = PartialState(cpu=True)
assert state.num_processes == 2
state.wait_for_everyone()
began = time.monotonic()
if os.environ["RANK"] == "1":
    time.sleep({HANGS_S})
try:
    state.wait_for_everyone()
except RuntimeError as error:
    print("WAITED", time.monotonic() - began, str(error).splitlines()[0], flush=True)
os._exit(0)
"""


def test_what_torch_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}
    monkeypatch.setattr(torch.distributed, "init_process_group", lambda *args, **named: given.update(named, b=args))
    monkeypatch.setenv("WORLD_SIZE", "2")
    trainer = trl_args.trainer("GRPOTrainer")
    start_process_group(trainer, {"ddp_timeout": 60})
    assert given == {"timeout": timedelta(seconds=60), "b": ("gloo",)}
    start_process_group(trainer, {})
    assert given["timeout"] == timedelta(seconds=1800)
    given.clear()
    monkeypatch.setenv("WORLD_SIZE", "1")
    start_process_group(trainer, {"ddp_timeout": 60})
    assert given == {}


def test_what_deepspeed_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """DeepSpeed starts the group itself, also for a single process: ZeRO-3 reads the number of ranks from it."""
    given: dict[str, Any] = {}
    comm = SimpleNamespace(init_distributed=lambda *args, **named: given.update(named, b=args))
    monkeypatch.setitem(sys.modules, "deepspeed", SimpleNamespace(comm=comm))
    monkeypatch.setenv("WORLD_SIZE", "1")
    start_process_group(trl_args.trainer("GRPOTrainer"), {"ddp_timeout": 60}, deepspeed=True)
    assert given == {"b": ("gloo",), "auto_mpi_discovery": False, "timeout": timedelta(seconds=60)}


@pytest.mark.slow
@pytest.mark.fault(24)
def test_a_rank_that_hangs_is_given_up_in_time() -> None:
    """Rank 1 sleeps for a minute; accelerate's own barrier in rank 0 fails after the configured five seconds."""
    (port,) = free_ports(1)
    place = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK],
            env=os.environ | place | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for rank in (0, 1)
    ]
    began = time.monotonic()
    try:
        said, _ = ranks[0].communicate(timeout=HANGS_S)
    finally:
        ranks[1].kill()
        ranks[1].communicate()
    assert time.monotonic() - began < HANGS_S
    assert said.startswith("WAITED "), said
    assert TIMEOUT_S - 1 < float(said.split()[1]) < HANGS_S / 2
