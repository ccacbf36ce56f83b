"""What a rollout leaves as it was: TRL casts the policy to the type in which continuous batching generates."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from rlhf_cli.models.live_generation import Generating
from rlhf_cli.trainers.rollout_mixin import RolloutMixin


class Casting:
    """TRL's trainer, which generates in bfloat16, does not cast back, and ends in training mode."""

    model: Any

    def _generate_single_turn(self, prompt_ids: list[list[int]]) -> list[list[int]]:
        self.model.to(torch.bfloat16).train()
        assert {value.dtype for value in (*self.model.parameters(), *self.model.buffers())} == {torch.bfloat16}
        return prompt_ids


class Rollouts(RolloutMixin, Casting):  # type: ignore[misc]
    """Our mixin over it."""


@pytest.mark.parametrize("is_training", [True, False])
@pytest.mark.parametrize("is_continuous", [True, False])
def test_mode_weights_and_buffers_are_those_before_continuous_batching(is_continuous: bool, is_training: bool) -> None:
    sizes = {"vocab_size": 8, "hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(**sizes, num_hidden_layers=1)).train(is_training)
    before = [value.clone() for value in (*model.parameters(), *model.buffers())]
    trainer: Any = object.__new__(Rollouts)
    vars(trainer).update(model=model, use_transformers_continuous_batching=is_continuous, _generating=Generating(True))
    vars(trainer).update(accelerator=SimpleNamespace(unwrap_model=lambda wrapped: wrapped))
    assert trainer._generate_single_turn([[1]]) == [[1]]
    assert model.training is (is_training or not is_continuous)
    after = (*model.parameters(), *model.buffers())
    assert all(map(torch.equal, before, after)) is is_continuous
    assert {value.dtype for value in after} == {torch.float32 if is_continuous else torch.bfloat16}
