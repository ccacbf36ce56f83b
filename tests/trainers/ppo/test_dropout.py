"""Dropout under PPO: none unless asked for, and then in the update alone."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

import rlhf_cli.trainers.assemble.trainer
from rlhf_cli.trainers.forward_pass import in_evaluation_mode, switch_off_dropout
from rlhf_cli.trainers.ppo.ppo_mixin import PpoMixin
from tests.support.small_runs import starting_model
from tests.support.tolerances import MODEL

ADAPTER = ("model.lora.r=4", "model.lora.lora_dropout=0.3", "trainer.args.num_iterations=2")
ASKED = "trainer.args.disable_dropout=false"


def move_adapter(seen: Any) -> None:
    """An adapter begins at B = 0, where dropping its inputs changes nothing."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in seen.trainer.model.named_parameters():
            if "lora_B" in name:
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))


@pytest.fixture
def dropping_model(train_ppo, tmp_path: Path, monkeypatch) -> None:
    """Every run begins with the small model, of whose attention a third is dropped in training."""
    code, folder = train_ppo("trainer.args.max_steps=1", name="model")
    assert code == 0
    copy = tmp_path / "dropping"
    shutil.copytree(starting_model(folder), copy)
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, "attention_dropout": 0.3}))
    monkeypatch.setattr(rlhf_cli.trainers.assemble.trainer, "policy_path", lambda experiment, on_progress: str(copy))


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


def test_neither_model_drops_anything_in_the_update(watch, dropping_model, monkeypatch) -> None:
    """In the first minibatch both compute what they did at the rollout, of a model whose attention drops a third."""
    found: list[tuple[float, float]] = []
    value_loss = PpoMixin._value_loss

    def spied(self: Any, inputs: Any) -> Any:
        values = self.critic.values(inputs, self.accelerator.autocast).detach()
        mask = inputs["completion_mask"].bool()
        by = (values - inputs["rollout_values"], self._latest_logps - inputs["old_per_token_logps"])
        found.append(tuple(float(one[mask].abs().max()) for one in by))
        return value_loss(self, inputs)

    def stir_critic(seen: Any) -> None:
        generator = torch.Generator().manual_seed(4)
        with torch.no_grad():
            for parameter in seen.trainer.critic.parameters():
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))

    monkeypatch.setattr(PpoMixin, "_value_loss", spied)
    for asked in ((), (ASKED,)):
        watch(*asked, on=stir_critic, name=f"asked{len(asked)}")
    off, on = found[0], found[len(found) // 2]
    assert max(off) < 1e-4
    assert min(on) > 1e-3  # control


def test_every_kind_of_dropout_is_switched_off() -> None:
    """Layers, and the shares that Llama keeps as numbers: in training it computes as in evaluation."""
    config = LlamaConfig(
        vocab_size=50,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        attention_dropout=0.5,
    )
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
