"""gloo waits for a hanging rank as long as `ddp_timeout` says: transformers tells it to every backend but gloo."""

from __future__ import annotations

import sys
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed

from rlhf_cli.config.schema.trainer_sections import Trainer
from rlhf_cli.trainers.assemble.trl_config import start_process_group


def test_what_torch_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}
    monkeypatch.setattr(torch.distributed, "init_process_group", lambda *args, **named: given.update(named, b=args))
    monkeypatch.setenv("WORLD_SIZE", "2")
    trainer = Trainer(name="grpo", trl="GRPOTrainer", args={"ddp_timeout": 60})
    start_process_group(trainer)
    assert given == {"timeout": timedelta(seconds=60), "b": ("gloo",)}
    start_process_group(Trainer(name="grpo", trl="GRPOTrainer"))
    assert given["timeout"] == timedelta(seconds=1800)
    given.clear()
    monkeypatch.setenv("WORLD_SIZE", "1")
    start_process_group(trainer)
    assert given == {}


def test_what_deepspeed_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """DeepSpeed starts the group itself, also for a single process: ZeRO-3 reads the number of ranks from it."""
    given: dict[str, Any] = {}
    comm = SimpleNamespace(init_distributed=lambda *args, **named: given.update(named, b=args))
    monkeypatch.setitem(sys.modules, "deepspeed", SimpleNamespace(comm=comm))
    monkeypatch.setenv("WORLD_SIZE", "1")
    start_process_group(Trainer(name="grpo", trl="GRPOTrainer", args={"ddp_timeout": 60}), deepspeed=True)
    assert given == {"b": ("gloo",), "auto_mpi_discovery": False, "timeout": timedelta(seconds=60)}
