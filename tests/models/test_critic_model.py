"""A critic's weights, the checkpoints that are refused, and how head and dropout are replaced."""

from __future__ import annotations

import shutil
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForTokenClassification,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)
from transformers.utils import logging

from rlhf_cli.errors import ModelError
from rlhf_cli.models import scalar_heads
from rlhf_cli.models.byte_tokenizer import byte_tokenizer
from rlhf_cli.models.scalar_heads import build_critic
from rlhf_cli.models.weight_shapes import load_renamed
from rlhf_cli.trainers.ppo.critic import TrainedCritic
from tests.support.tolerances import assert_close

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`")
IDS = torch.tensor([[5, 9, 70, 33, 200], [1, 2, 3, 4, 5]])
LINEAR = ["q_proj", "v_proj"]


@pytest.fixture(scope="module")
def policy(reward_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("policy")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        LlamaForCausalLM(LlamaConfig.from_pretrained(reward_model)).save_pretrained(folder)
    return folder


def build(init: Path | str, policy: Path, **options: Any) -> Any:
    return build_critic(str(init), str(policy), **{"dtype": "auto", "dropout": 0.0} | options)


def values_of(critic: Any) -> torch.Tensor:
    with torch.no_grad():
        return critic.eval()(input_ids=IDS).logits.squeeze(2)


def scores_of(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(input_ids=IDS).logits.squeeze(1)


def test_the_policys_backbone_gets_a_head_of_zeros(policy: Path) -> None:
    verbosity = logging.get_verbosity()
    critic = build("policy", policy)
    assert logging.get_verbosity() == verbosity
    body = AutoModelForCausalLM.from_pretrained(policy).model.state_dict()
    assert critic.model.state_dict().keys() == body.keys()
    assert all(torch.equal(critic.model.state_dict()[name], weight) for name, weight in body.items())
    assert torch.equal(values_of(critic), torch.zeros(2, 5))
    assert [weight.any().item() for weight in critic.score.parameters()] == [False, False]
    assert all(weight.requires_grad for weight in critic.parameters())


def test_a_reward_models_score_becomes_the_value_of_the_last_token(policy: Path, reward_model: Path) -> None:
    """With dropout, too, which is active in training alone."""
    critic, dropping = build(reward_model, policy), build(reward_model, policy, dropout=0.3)
    scores = scores_of(AutoModelForSequenceClassification.from_pretrained(reward_model))
    assert_close(values_of(critic)[:, -1], scores)
    assert scores.abs().min() > 0.01
    assert all(weight.requires_grad for weight in critic.parameters())
    assert not any(weight.is_meta for weight in [*critic.parameters(), *critic.buffers()])
    assert [module.p for module in dropping.modules() if isinstance(module, nn.Dropout)] == [0.3]
    assert torch.equal(values_of(dropping), values_of(critic))
    with torch.no_grad():
        assert not torch.equal(dropping.train()(input_ids=IDS).logits, dropping(input_ids=IDS).logits)


def test_a_reward_models_adapter_is_merged(policy: Path, tmp_path: Path) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        model = AutoModelForSequenceClassification.from_pretrained(policy, num_labels=1)
        model = get_peft_model(model, LoraConfig(r=2, target_modules=LINEAR, task_type="SEQ_CLS"))
        for name, weight in model.named_parameters():
            if "lora" in name or "score" in name:
                nn.init.normal_(weight, std=1.0)
    model.save_pretrained(tmp_path)
    byte_tokenizer(128).save_pretrained(tmp_path)
    critic = build(tmp_path, policy)
    assert_close(values_of(critic)[:, -1], scores_of(model))
    assert type(critic) is LlamaForTokenClassification
    assert not any("lora" in name for name, _ in critic.named_modules())
    assert all(weight.requires_grad for weight in critic.parameters())


def test_a_bfloat16_body_has_a_float32_head(policy: Path, reward_model: Path) -> None:
    critic = build(reward_model, policy, dtype="bfloat16")
    assert {weight.dtype for weight in critic.model.parameters()} == {torch.bfloat16}
    assert {weight.dtype for weight in critic.score.parameters()} == {torch.float32}
    with torch.autocast("cpu", torch.bfloat16):
        values = values_of(critic)
    assert values.dtype == torch.float32
    assert values.isfinite().all()
    assert not torch.equal(values, values.bfloat16().float())
    loss = critic.train()(input_ids=IDS).logits.square().sum()
    loss.backward()
    assert critic.score.weight.grad.dtype == torch.float32


def test_a_checkpoint_is_what_its_config_names(tmp_path: Path) -> None:
    for kind, architectures in (
        ("language model", ["LlamaForCausalLM"]),
        ("reward model", ["LlamaForSequenceClassification", "LlamaModel"]),
        *(("critic", named) for named in (["LlamaForTokenClassification"], None)),
    ):
        LlamaConfig(architectures=architectures).save_pretrained(tmp_path)
        assert scalar_heads._kind_of(str(tmp_path), False) == kind


@pytest.mark.parametrize("name", ["score.weight", "score.bias", "model.norm.weight"])
def test_what_lost_weights_is_refused(name: str, policy: Path, reward_model: Path, tmp_path: Path) -> None:
    """A saved critic, a reward model, which has no bias, and the policy below a new head."""
    build("policy", policy).save_pretrained(tmp_path / "critic")
    refused(without(tmp_path / "critic", tmp_path / "lost", name), policy, name)
    if name != "score.bias":
        refused(without(reward_model, tmp_path / "lost reward model", name), policy, name)
    if "norm" in name:
        refused("policy", without(policy, tmp_path / "lost policy", name), name)


def test_an_adapter_in_the_policys_place_is_refused(policy: Path, tmp_path: Path) -> None:
    """transformers freezes the adapter and its base: such a critic would train only its head."""
    model = AutoModelForCausalLM.from_pretrained(policy)
    get_peft_model(model, LoraConfig(r=2, target_modules=LINEAR, task_type="CAUSAL_LM")).save_pretrained(tmp_path)
    refused("policy", tmp_path, "adapter")


def refused(init: Path | str, policy: Path, got: str) -> None:
    with pytest.raises(ModelError) as caught:
        build(init, policy)
    assert got in str(caught.value.got)
    assert caught.value.expected


def without(folder: Path, copy: Path, name: str) -> Path:
    """Copy a checkpoint without one tensor."""
    shutil.copytree(folder, copy)
    weights = load_file(file := copy / "model.safetensors")
    save_file({one: weight for one, weight in weights.items() if one != name}, file, metadata={"format": "pt"})
    return copy


WRITTEN = {"<pad>": 0, "<eos>": 1, "one": 2, "two": 3}


@pytest.mark.parametrize(
    ("num_rows", "tokens", "got"),
    [
        (4, WRITTEN, None),
        (5, WRITTEN | {"three": 4}, None),
        (4, None, None),  # saved without a tokenizer
        (4, WRITTEN | {"one": 3, "two": 2}, "'one'"),
        (8, {"<pad>": 0, "<eos>": 1, "one": 2, "four": 3}, "'two'"),
        (3, WRITTEN, "vocab_size 3"),
        (3, None, "vocab_size 3"),
        (3, {}, "unknown"),
    ],
)
def test_the_tokens_of_a_critic_on_the_hub_are_compared_with_the_policys(
    monkeypatch: pytest.MonkeyPatch, num_rows: int, tokens: dict[str, int] | None, got: str | None
) -> None:
    def tokenizer(path: str, **_: Any) -> Any:
        if path == "org/critic" and tokens is None:
            raise OSError("no tokenizer there")
        return SimpleNamespace(get_vocab=lambda: WRITTEN if path == "org/policy" else tokens)

    monkeypatch.setattr(scalar_heads.AutoTokenizer, "from_pretrained", tokenizer)
    critic: Any = SimpleNamespace(config=LlamaConfig(vocab_size=num_rows))
    with nullcontext() if got is None else pytest.raises(ModelError) as caught:
        scalar_heads.check_tokens(critic, "org/critic", "org/policy")
    if caught is not None:
        assert (caught.value.where, caught.value.hint) == ("critic.init", "critic.init=policy")
        assert str(got) in str(caught.value.got)


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Transformers saves its experts under other names than they have in memory."""
    size = {"hidden_size": 8, "intermediate_size": 8, "moe_intermediate_size": 4, "head_dim": 4, "vocab_size": 16}
    heads = {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2}
    config = Qwen3MoeConfig(**size, **heads, num_experts=4, num_experts_per_tok=2, dtype="bfloat16")
    Qwen3MoeForCausalLM(config).to(torch.bfloat16).save_pretrained(folder := tmp_path_factory.mktemp("mixture"))
    return folder


@pytest.mark.parametrize("is_mixture", [True, False])
def test_a_saved_critic_is_loaded_whole_under_whatever_names(
    is_mixture: bool, policy: Path, mixture: Path, tmp_path: Path
) -> None:
    """Also its head, in float32 over a body in bfloat16."""
    model, other = (build("policy", mixture if is_mixture else policy) for _ in range(2))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    model.save_pretrained(tmp_path)
    assert load_renamed(other, tmp_path) is is_mixture
    critic: Any = SimpleNamespace(model=other)
    TrainedCritic._load_weights(critic, tmp_path)
    whole = model.state_dict()
    assert all(torch.equal(value, whole[name]) for name, value in other.state_dict().items())
