"""Dropout under PPO: none unless asked for, and then in the update alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from rlhf_cli.trainers.forward_pass import drops_in_training, in_evaluation_mode, switch_off_dropout
from tests.support.random_reward_model import save_random_reward_model
from tests.support.tolerances import MODEL

pytestmark = pytest.mark.whole

ADAPTER = ("model.lora.r=4", "model.lora.lora_dropout=0.3", "trainer.args.num_iterations=2")
ASKED = "trainer.args.disable_dropout=false"


def move_adapter(seen: Any) -> None:
    """An adapter begins at B = 0, where dropping its inputs changes nothing."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in seen.trainer.model.named_parameters():
            if "lora_B" in name:
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))


@pytest.mark.parametrize("share", ["none", "lora"])
def test_a_policy_that_has_not_moved_has_a_ratio_of_one(watch, share: str) -> None:
    """Up to rounding; the control is the same run with dropout asked for."""
    ends = {}
    for name, words in (("off", ()), ("on", (ASKED,))):
        seen = watch(*ADAPTER, f"critic.share={share}", *words, on=move_adapter, name=name)
        ends[name] = seen.trainer.state.log_history[0]
    assert ends["off"]["ppo/ratio_max"] == pytest.approx(1.0, **MODEL)
    assert ends["off"]["ppo/clip_fraction"] == 0.0
    assert ends["off"]["ppo/approx_kl_k3_old_new"] == pytest.approx(0.0, abs=1e-9)
    assert ends["on"]["ppo/ratio_max"] > 1.02
    assert ends["on"]["ppo/approx_kl_k3_old_new"] > 1e-6


@pytest.mark.parametrize("words", [(), (ASKED,)], ids=["off", "asked for"])
def test_the_critic_s_own_body_has_it_only_if_it_is_asked_for(watch, words: tuple[str, ...]) -> None:
    save_random_reward_model(folder := Path("rm"))
    config = folder / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"attention_dropout": 0.5}))
    seen = watch("critic.init=./rm", "trainer.args.max_steps=1", *words)
    assert drops_in_training(seen.critic.body()) is bool(words)


def test_every_kind_of_dropout_is_switched_off() -> None:
    """Layers, and the shares that Llama keeps as numbers: in training it computes as in evaluation."""
    shape = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=50, **shape, attention_dropout=0.5)
    model = nn.Sequential(nn.Embedding(50, 8), nn.Dropout(0.5), nn.Linear(8, 8))
    llama, ids = LlamaForCausalLM(config).train(), torch.arange(12).view(2, 6)

    def moves(module: nn.Module) -> bool:
        outputs = [module(ids) for _ in range(2)]
        first, second = (getattr(one, "logits", one) for one in outputs)
        return not torch.equal(first, second)

    assert moves(llama)
    assert moves(model)
    switch_off_dropout(llama)
    switch_off_dropout(model)
    assert not moves(llama)
    assert not moves(model)


def test_a_pass_in_evaluation_leaves_every_module_as_it_was() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Dropout(0.5), nn.Linear(2, 2)))
    model[0].eval()
    with in_evaluation_mode(model):
        assert not any(module.training for module in model.modules())
    assert [module.training for module in model.modules()] == [True, False, True, True, True]
