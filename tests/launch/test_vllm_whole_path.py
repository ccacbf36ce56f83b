"""A whole run whose completions come from a server: ours to start, TRL's own client to ask, a stand-in to answer.

What is not TRL's here: the server is a stand-in for `vllm serve`, and NCCL, which carries the weights past HTTP, is
replaced by a function that takes every tensor and sends none. vLLM itself runs in tests/launch/vllm.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import trl.generation.vllm_client as client
import trl.generation.vllm_generation as generation
from peft import AutoPeftModelForCausalLM
from rich.console import Console

from rlhf_cli.jobs.prepare import prepare
from rlhf_cli.launch.freeze import create_run
from rlhf_cli.launch.rollout_server import free_ports, rollout_server
from rlhf_cli.launch.worker import run_rank
from rlhf_cli.plan.launch_plan import plan_launch
from rlhf_cli.plan.rollout_server_plan import ServerPlan
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.run_status import FINISHED, read_status
from tests.support.small_runs import SMALL, starting_model

pytestmark = pytest.mark.slow
WORDS = [*SMALL, "run.name=one", "launch.rollout=vllm_server", "launch.rollout_gpus=1"]
WORDS += ["trainer.args.gradient_accumulation_steps=1", "trainer.args.max_steps=2"]


def join_without_nccl(self: client.VLLMClient, device: object) -> None:
    """What `VLLMClient.init_communicator` asks over HTTP, without the group of GPUs that it then joins."""
    assert self.get_server_info()["weight_transfer_config"] is not None
    info = {"master_port": self.group_port, "rank_offset": 1, "world_size": self.get_world_size() + 1, "packed": True}
    self._post(f"{self.base_url}/init_weight_transfer_engine", json={"init_info": info})


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, torch.Tensor]]:
    """Every set of weights that TRL sent, a dict each."""
    found: list[dict[str, torch.Tensor]] = []

    def take(iterator: Iterator[tuple[str, torch.Tensor]], **_: Any) -> None:
        read = list(iterator)  # as vLLM's sender, which reads a gigabyte of them before it copies any
        found.append({name: tensor.clone() for name, tensor in read})

    for module in (client, generation):
        monkeypatch.setattr(module, "is_vllm_available", lambda min_version=None: True)
    monkeypatch.setattr(client, "_HAS_STATEFUL_TRAINER_ENGINE", True)
    monkeypatch.setattr(client, "_HAS_RESET_PREFIX_CACHE_SUCCESS", True)
    monkeypatch.setattr(client, "packed_nccl_broadcast_producer", take, raising=False)
    monkeypatch.setattr(client.VLLMClient, "init_communicator", join_without_nccl)
    return found


def weights(folder: Path) -> dict[str, torch.Tensor]:
    from transformers import AutoModelForCausalLM

    return dict(AutoModelForCausalLM.from_pretrained(folder).named_parameters())


def served(words: list[str], monkeypatch: pytest.MonkeyPatch) -> tuple[RunFolder, ServerPlan]:
    """Train the run of `words` to its end, with the stand-in in the place of the server that it plans."""
    prepared = prepare(words)
    run = create_run(prepared.experiment, prepared.composed, files={})
    plan = plan_launch(prepared.experiment, run.path).at_ports(*free_ports(3))
    assert plan.server is not None
    command = list(plan.server.argv)
    assert command[:4] == [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve"]
    command[2] = "tests.launch.stand_in_vllm"
    command[command.index("--tensor-parallel-size") + 1] = "1"  # there is no GPU to plan it on
    server = type(plan.server)(tuple(command), plan.server.env, ("0",), *_ports(plan.server), plan.server.log)
    for name, value in server.for_ranks().items():
        monkeypatch.setenv(name, value)
    with rollout_server(server, Console(file=io.StringIO())):
        run_rank(run, resume=False)
    return run, server


def test_a_run_learns_from_what_the_server_answers(place: Path, sent, monkeypatch: pytest.MonkeyPatch) -> None:
    """Completions are the stand-in's, of two and four tokens in turn, and a round is asked for with the weights of its
    step: before the first step those the run began with, before the second those that one step has made.
    """
    run, server = served(WORDS, monkeypatch)
    assert read_status(run).state == FINISHED
    logged = [json.loads(line) for line in run.metrics.read_text().splitlines()]
    steps = [one for one in logged if "completions/mean_length" in one]
    assert {one["completions/mean_length"] for one in steps} == {3.0}
    asked = [json.loads(line) for line in server.log.read_text().splitlines() if line.startswith("{")]
    rounds = [one["payload"] for one in asked if one["path"] == "/v1/completions"]
    assert len(rounds) == 2
    assert sum(len(one["prompt"]) * one["n"] for one in rounds) == 2 * 8
    assert all(one["logprobs"] == 0 and one["max_tokens"] == 4 for one in rounds)
    (joined,) = [one["payload"]["init_info"] for one in asked if one["path"] == "/init_weight_transfer_engine"]
    assert (joined["master_port"], joined["world_size"]) == (server.group_port, 2)
    assert all("sampling/sampling_logp_difference/mean" in one for one in steps)
    began, ended = weights(starting_model(run)), weights(run.model)
    assert len(sent) == 2
    assert all(torch.equal(sent[0][name], began[name]) for name in began)
    assert any(not torch.equal(sent[1][name], began[name]) for name in began)
    assert any(not torch.equal(sent[1][name], ended[name]) for name in ended)


def test_an_adapter_is_in_what_is_sent(place: Path, sent, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against the checkpoint of the first step, which PEFT loads and merges."""
    saved = ("trainer.args.save_steps=1", "trainer.args.save_total_limit=null")
    run, _ = served([*WORDS, "+model.lora.r=4", "trainer.args.learning_rate=0.01", *saved], monkeypatch)
    merged = AutoPeftModelForCausalLM.from_pretrained(run.checkpoints / "checkpoint-1").merge_and_unload()
    expected = dict(merged.named_parameters())
    first, second = sent
    assert max((second[name] - first[name]).abs().max() for name in first) > 1e-3
    assert all(torch.allclose(second[name], expected[name], atol=1e-6) for name in second)


def _ports(server: Any) -> tuple[int, int]:
    return server.port, server.group_port


def test_without_the_server_the_run_fails(place: Path, sent, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: the completions above were the server's."""
    run = _frozen()
    (port,) = free_ports(1)
    monkeypatch.setenv("RLHF_VLLM_URL", f"http://127.0.0.1:{port}")
    with pytest.raises(OSError, match="be reached at"):
        run_rank(run, resume=False)


def _frozen() -> RunFolder:
    prepared = prepare([*WORDS, "trainer.args.vllm_server_timeout=0.1"])
    return create_run(prepared.experiment, prepared.composed, files={})
