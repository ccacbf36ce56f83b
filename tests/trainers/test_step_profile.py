"""Shares of a step's time, waits for other ranks, and token slots of passes."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM
from trl.trainer.utils import use_adapter

from rlhf_cli.runs.heartbeat import PhaseClock
from rlhf_cli.tables.metrics import PHASES
from rlhf_cli.trainers.logging_mixin import LoggingMixin
from rlhf_cli.trainers.step_profile import StepProfile, TokenSlots, counted_slots, is_reference, timed_waits, uncounted


class Clock:
    """What a rank's clock says."""

    def __init__(self, **seconds: float) -> None:
        self._seconds = seconds

    def taken(self) -> dict[str, float]:
        taken, self._seconds = self._seconds, {}
        return taken


class Ranks:
    """An accelerator of several processes; the other ranks reported `others`."""

    def __init__(self, num_processes: int = 1, others: dict[str, float] | None = None) -> None:
        self.num_processes, self.device, self._others = num_processes, torch.device("cpu"), others or {}

    def reduce(self, own: torch.Tensor, reduction: str) -> torch.Tensor:
        assert reduction == "sum"
        names = [*PHASES, "reward/judge", "slots", "tokens"]
        return own + torch.tensor([self._others.get(name, 0.0) for name in names], dtype=own.dtype)


def profile_of(clock: Any, slots: int = 0, tokens: int = 0, **more: Any) -> StepProfile:
    counted = TokenSlots()
    counted.add(slots, tokens)
    return StepProfile(clock, counted, **{"rewards": ["judge"], **more})


def test_shares_of_one_rank() -> None:
    """1 s of 4 is a quarter; 30 slots for 20 tokens are 1.5. A second call has nothing to say."""
    accelerator: Any = Ranks()
    profile = profile_of(Clock(generation=1.0, rest=1.0, **{"reward/judge": 2.0}), 30, 20)
    metrics = profile.taken(accelerator)
    shares = {name.removeprefix("time/share/"): value for name, value in metrics.items() if "/share/" in name}
    assert (metrics["time/elapsed_s"], metrics["passes/slots_per_token"]) == (4.0, 1.5)
    assert {"generation": 0.25, "reward/judge": 0.5, "saving": 0.0, "scoring": 0.0}.items() <= shares.items()
    assert sum(shares.values()) == 1.0
    assert not {"waiting", "critic"} & shares.keys()
    assert profile.taken(accelerator) == {}
    assert profile_of(Clock(critic=0.1, rest=0.2)).taken(accelerator)["time/share/critic"] == 0.333333


def test_ranks_count_the_same_and_slots_are_summed() -> None:
    """One waits 3 s of 4 for the other, which generates: (1 + 4) / 8 and 3 / 8. Tokens are 5 + 15."""
    accelerator: Any = Ranks(2, {"generation": 4.0, "slots": 2.0**24, "tokens": 15.0})
    metrics = profile_of(Clock(generation=1.0, waiting=3.0), 1, 5).taken(accelerator)
    expected = {"time/elapsed_s": 4.0, "time/share/generation": 0.625, "time/share/waiting": 0.375}
    assert (expected | {"passes/slots": 2**24 + 1, "passes/tokens": 20.0}).items() <= metrics.items()


def test_the_reference_is_another_model_or_the_policy_without_its_adapter() -> None:
    config = LlamaConfig(hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2, vocab_size=8)
    policy, reference = LlamaForCausalLM(config), LlamaForCausalLM(config)
    assert is_reference(reference, reference)
    assert not is_reference(policy, reference)
    assert not is_reference(policy, None)
    adapted = get_peft_model(policy, LoraConfig(target_modules=["q_proj"]))
    adapted.add_adapter("ref", LoraConfig(target_modules=["q_proj"]))
    assert not is_reference(adapted, None)
    for name in (None, "ref"):
        with use_adapter(adapted, name):
            assert is_reference(adapted, None)
    assert not is_reference(adapted, None)


def test_time_in_a_collective_is_waiting_and_the_functions_are_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(*given: object, **_: object) -> tuple[object, ...]:
        time.sleep(0.02)
        return given

    monkeypatch.setattr(torch.distributed, "all_gather_object", slow)
    clock, settled = PhaseClock(), list[int]()
    clock.hear(("training",))
    with timed_waits(clock, settle=lambda: settled.append(1)):
        assert torch.distributed.all_gather_object(1, 2) == (1, 2)
    assert clock.taken()["waiting"] >= 0.02
    assert settled == [1]
    assert torch.distributed.all_gather_object is slow


class Trl:
    """Stands for TRL's trainer."""

    def compute_loss(self, *given: object) -> None: ...


def test_a_batch_of_rows_is_counted_by_its_masks() -> None:
    """Two rows of 5 and 2 in 10 slots, and KTO's second set, 3 of 4; the prompts in front of them are in these."""
    ids, mask = torch.zeros(2, 5, dtype=torch.long), torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]])
    batch = {"input_ids": ids, "attention_mask": mask, "prompt_input_ids": ids, "labels": ids}
    batch |= {"KL_input_ids": torch.zeros(1, 4), "KL_attention_mask": torch.tensor([[1, 1, 1, 0]])}
    trainer: Any = object.__new__(type("Rows", (LoggingMixin, Trl), {}))
    trainer.extensions = SimpleNamespace(heartbeat=None, rewards=None, profile=object())
    with counted_slots() as slots:
        trainer.compute_loss(None, batch)
        assert slots.taken() == (14, 10)
        assert slots.taken() == (0, 0)
        with counted_slots() as other, uncounted():
            trainer.compute_loss(None, batch)
        trainer.compute_loss(None, batch)
    assert (slots.taken(), other.taken()) == ((14, 10), (0, 0))
