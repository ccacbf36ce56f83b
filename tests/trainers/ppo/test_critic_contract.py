"""What PPO leans on in TRL, transformers and PEFT: a critic beside GRPOTrainer, or on the policy's own adapters."""

from __future__ import annotations

import contextlib
import functools
import inspect
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import trl
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import GPTJConfig, GPTJForCausalLM, LlamaConfig, LlamaForCausalLM, Trainer
from trl.generation.vllm_generation import VLLMGeneration

from rlhf_cli.algorithms.ppo import Ppo
from rlhf_cli.errors import ModelError
from rlhf_cli.plan.prepare import prepare
from rlhf_cli.trainers.assemble.ppo_setup import ppo_args, ppo_setup
from rlhf_cli.trainers.pass_mixin import PassMixin
from rlhf_cli.trainers.ppo.critic import CriticSettings, KlPenalty, TrainedCritic, _recompute_activations
from rlhf_cli.trainers.ppo.lora_critic import SharedLoraCritic
from rlhf_cli.trainers.ppo.ppo_mixin import PpoMixin
from rlhf_cli.trainers.rollout_mixin import _sent
from tests.support.signatures import parameters
from tests.support.watched_critic import SHARED

_A = "trainer.args."


def test_log_probabilities_are_asked_for_by_one_method() -> None:
    """PpoMixin passes its arguments on."""
    theirs, ours, ppo = (
        parameters(one._get_per_token_logps_and_entropies) for one in (trl.GRPOTrainer, PassMixin, PpoMixin)
    )
    assert (ours, ppo) == ([*theirs[:7], "others"], ["self", "model", "args", "named"])


def test_what_a_rollout_holds() -> None:
    before, output, held = inspect.getsource(trl.GRPOTrainer._generate_and_score_completions).rpartition(
        "        output = {"
    )
    assert output
    for key in ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask", "advantages", "num_items_in_batch"):
        assert f'"{key}": {key},' in held, key
    for key in ("old_per_token_logps", "ref_per_token_logps", "tool_mask"):
        assert f'output["{key}"] = {key}' in held, key
    assert "if self.beta != 0.0:" in before


def test_the_loss_takes_a_kl_only_with_beta() -> None:
    source = inspect.getsource(trl.GRPOTrainer._compute_loss)
    assert source.count("self.beta") == source.count("if self.beta != 0.0:") + source.count("self.beta * per")


def test_groups_of_one_are_refused_and_can_be_set_afterwards(tmp_path) -> None:
    words = {"output_dir": str(tmp_path), "per_device_train_batch_size": 4, "use_cpu": True, "bf16": False}
    with pytest.raises(ValueError, match="at least 2 generations"):
        trl.GRPOConfig(**words, num_generations=1)
    args = trl.GRPOConfig(**words, num_generations=4, num_generations_eval=1)
    args.num_generations = 1
    assert inspect.signature(trl.GRPOConfig).parameters["per_device_train_batch_size"].default == 8


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((f"{_A}num_generations=4",), {"num_generations": 4, "num_generations_eval": 4}),
        ((f"{_A}num_generations=4", f"{_A}num_generations_eval=2"), {"num_generations_eval": 2}),
        ((f"{_A}steps_per_generation=3",), {"num_generations": 24, "num_generations_eval": 1}),
        (
            (f"{_A}steps_per_generation=null", f"{_A}gradient_accumulation_steps=5"),
            {"num_generations": 40, "beta": 0.05, "disable_dropout": True, "seed": 7},
        ),
        ((f"{_A}steps_per_generation=null", f"{_A}generation_batch_size=48"), {"num_generations": 48}),
        ((f"{_A}disable_dropout=false", "kl.where=none"), {"disable_dropout": False, "beta": 0.0}),
        (("kl.coef=0.3", "kl.where=loss", *SHARED), {"beta": 0.3, "ddp_find_unused_parameters": False}),
    ],
    ids=str,
)
def test_what_trl_s_config_gets(
    place, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], expected: dict[str, Any]
) -> None:
    """On two ranks of four rows. A group of one is set afterwards: a size that divides the round stands for it."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    given: dict[str, Any] = {}

    def config_class(**named: Any) -> Any:
        given.update(named)
        return SimpleNamespace(**named)

    four_rows = ("+exp=quickstart", "trainer=ppo", f"{_A}per_device_train_batch_size=4", f"{_A}num_generations=1")
    made = ppo_args(prepare([*four_rows, *words]).experiment, config_class, {"seed": 7})
    assert {name: given[name] for name in expected} == expected
    assert ("ddp_find_unused_parameters" in given) is (SHARED[0] in words)
    assert made.num_generations == (4 if f"{_A}num_generations=4" in words else 1)


def test_the_sections_of_a_critic_and_its_penalty_are_used(place) -> None:
    settings = {"learning_rate": 0.04, "warmup_steps": 2, "value_clip": 0.1, "loss_coef": 0.7, "max_grad_norm": 0.3}
    words = [*(f"critic.{name}={value}" for name, value in settings.items()), "critic.dropout=0.2", *SHARED]
    kl = ["kl.where=loss", "kl.coef=0.3", "kl.controller={target: 1.5, horizon: 40}"]
    experiment = prepare(["+exp=quickstart", "trainer=ppo", *words, *kl]).experiment
    setup = ppo_setup(experiment, "a policy", algorithm := Ppo(1.0, 0.95, whiten_advantages=True, keeps_prompts=True))
    assert setup.settings is algorithm
    assert setup.kl == KlPenalty("loss", 0.3, 1.5, 40)
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    policy = get_peft_model(LlamaForCausalLM(LlamaConfig(vocab_size=8, **sizes)), LoraConfig(r=2))
    critic: Any = setup.make_critic(policy)
    assert critic.settings == CriticSettings(**settings)  # type: ignore[arg-type]
    assert critic._dropout == 0.2


@pytest.mark.parametrize(
    ("schedule", "rates"),
    [
        ({"lr_scheduler_type": "reduce_lr_on_plateau"}, [0.4, 0.2]),
        ({"lr_scheduler_type": "linear"}, [0.2, 0.0]),
        ({"lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": {"min_lr_rate": 0.5}}, [0.3, 0.2]),
    ],
    ids=str,
)
def test_the_critic_s_rate_follows_a_schedule_that_steps_by_evaluations(
    tmp_path, schedule: dict[str, Any], rates: list[float]
) -> None:
    words = {"output_dir": str(tmp_path), "per_device_train_batch_size": 8, "use_cpu": True, "bf16": False}
    words |= {"learning_rate": 0.1, "gradient_checkpointing": False, "eval_strategy": "steps", "eval_steps": 1}
    args = trl.GRPOConfig(**words, **schedule, weight_decay=0.1)
    policy = torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), lr=0.1)
    accelerator = SimpleNamespace(distributed_type=None, prepare=lambda *given: given, device="cpu", autocast=None)
    trainer: Any = SimpleNamespace(args=args, optimizer=policy, accelerator=accelerator)
    trainer.get_decay_parameter_names = lambda model: ["weight"]
    critic: Any = object.__new__(TrainedCritic)
    critic.model, critic.settings = torch.nn.Linear(1, 1), CriticSettings(0.4, 0, None, 1.0, 1.0)
    critic.prepare(trainer, num_training_steps=2)
    groups = [(group["weight_decay"], group["params"]) for group in critic._optimizer.param_groups]
    assert groups == [(0.1, [critic.model.weight]), (0.0, [critic.model.bias])]
    found = []
    for factor in (1.0, 0.5):  # transformers halves the policy's rate after an evaluation
        policy.param_groups[0]["lr"] = 0.1 * factor
        critic.step()
        found.append(critic._schedule.get_last_lr()[0])
    assert found == pytest.approx(rates)


SPARSE = {"every_n_layers": 2, "offload": True, "use_reentrant": False}


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ({"activation_checkpointing": False}, []),
        ({"activation_checkpointing": True, "activation_checkpointing_kwargs": None}, [(1, False, None)]),
        (
            {"activation_checkpointing": True, "activation_checkpointing_kwargs": SPARSE},
            [(2, True, {"use_reentrant": False})],
        ),
        ({"gradient_checkpointing": False}, []),  # its name before transformers 5.23
        ({"gradient_checkpointing": True, "gradient_checkpointing_kwargs": SPARSE}, [SPARSE]),
    ],
    ids=str,
)
def test_activations_are_recomputed_as_the_policy_s_are(args: dict[str, Any], expected: list[Any]) -> None:
    found: list[Any] = []
    model: Any = SimpleNamespace(
        gradient_checkpointing_enable=found.append,
        activation_checkpointing_enable=lambda every_n_layers, offload, activation_checkpointing_kwargs: found.append(
            (every_n_layers, offload, activation_checkpointing_kwargs)
        ),
    )
    _recompute_activations(model, SimpleNamespace(**args))  # type: ignore[arg-type]
    assert found == expected


def test_a_critic_that_could_not_be_loaded_again_is_refused() -> None:
    config = GPTJConfig(vocab_size=8, n_embd=8, n_layer=1, n_head=1, rotary_dim=4)
    policy: Any = get_peft_model(GPTJForCausalLM(config), LoraConfig(r=2))
    with pytest.raises(ModelError) as caught:
        SharedLoraCritic(policy, CriticSettings(0.1, 0, None, 1.0, 1.0), dropout=0.0)
    assert (caught.value.where, caught.value.got) == ("critic.share", "gptj")


def test_the_policy_s_optimizer_takes_what_requires_a_gradient_and_passes_over_what_has_none() -> None:
    assert inspect.getsource(Trainer.create_optimizer).count("p.requires_grad") == 2
    one = torch.nn.Parameter(torch.ones(1))
    torch.optim.AdamW([one], weight_decay=0.1).step()
    assert one.item() == 1
    assert "selected_adapters" in parameters(PeftModel.save_pretrained)


@pytest.mark.parametrize("copies", [True, False])
def test_vllm_is_sent_no_head_of_a_critic_that_shares_the_policys_body(copies: bool) -> None:
    """TRL itself leaves out only the adapters. The server reads copies: it reads when the adapter is out again."""
    sizes = {"vocab_size": 8, "hidden_size": 8, "intermediate_size": 8, "max_position_embeddings": 8}
    model = LlamaForCausalLM(LlamaConfig(**sizes, num_hidden_layers=1, num_attention_heads=2))
    names = {name for name, _ in model.named_parameters()}
    policy: Any = get_peft_model(model, LoraConfig(r=2))
    SharedLoraCritic(policy, CriticSettings(0.1, 0, None, 1.0, 1.0), dropout=0.0)
    sender: Any = SimpleNamespace(
        model=policy, _dist=SimpleNamespace(gather_params=lambda _: contextlib.nullcontext(), is_fsdp=False)
    )
    sender._fix_param_name_to_vllm = functools.partial(VLLMGeneration._fix_param_name_to_vllm, sender)
    found = dict(_sent(functools.partial(VLLMGeneration._iter_named_params, sender), copies=copies))
    assert found.keys() == names
    own = {parameter.data_ptr() for parameter in policy.parameters()}
    assert all((value.data_ptr() in own) is not copies for value in found.values())
