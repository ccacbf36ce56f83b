"""The critic in real runs: what trains it and when, and what must not. Dropout is in the update alone, if asked for."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import pyarrow.parquet
import pytest
import torch
from peft import AutoPeftModelForTokenClassification, set_peft_model_state_dict
from safetensors.torch import load_file
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.trainers.forward_pass import drops_in_training, in_evaluation_mode, switch_off_dropout
from rlhf_cli.trainers.ppo.critic import prompts_and_completions
from tests.support.float64 import all_in_float64, in_float64, no_float32
from tests.support.random_reward_model import save_random_reward_model
from tests.support.tolerances import MODEL, assert_equal
from tests.support.watched_critic import BOTH, SHARED, Watched, is_same, logged, spread_adapter, spread_head

pytestmark = pytest.mark.whole


@BOTH
def test_in_its_warm_up_the_critic_alone_learns(watch, arrangement: list[str]) -> None:
    seen = watch(*arrangement, "critic.warmup_steps=2", "trainer.args.gradient_accumulation_steps=2")
    start, first, second, third = seen.policy
    assert is_same(start, first)
    assert is_same(start, second)
    assert not is_same(start, third)
    assert not any(is_same(*pair) for pair in itertools.pairwise(seen.values))
    assert logged(seen.folder, "grad_norm")[:2] == [0.0, 0.0]


@BOTH
def test_it_follows_the_schedule_and_its_gradient_is_clipped_alone(watch, arrangement: list[str]) -> None:
    """The norm is logged as it was before clipping."""
    schedule = ("trainer.args.lr_scheduler_type=cosine", "critic.learning_rate=0.04")
    seen = watch(*arrangement, *schedule, "critic.max_grad_norm=0.001", "critic.loss_coef=1000")
    wanted = [0.02 * (1 + math.cos(math.pi * step / 3)) for step in range(3)]
    assert seen.used_learning_rates == pytest.approx(wanted)
    assert logged(seen.folder, "critic/learning_rate") == pytest.approx(wanted)
    assert logged(seen.folder, "learning_rate") == pytest.approx([rate / 40 for rate in wanted])
    assert max(seen.clipped) <= 0.001 * (1 + 1e-4)
    before = [torch.cat([one.flatten() for one in step.values()]).norm().item() for step in seen.gradients]
    assert logged(seen.folder, "critic/grad_norm") == pytest.approx(before, rel=1e-4)
    assert min(before) > 0.01


@BOTH
def test_neither_loss_reaches_the_other_s_parameters(watch, arrangement: list[str]) -> None:
    """However large the value loss, step 1 of the policy is the same to the last bit, as is its gradient's norm."""
    small = watch(*arrangement, "critic.loss_coef=1e-6", "trainer.args.max_steps=1", name="small")
    large = watch(*arrangement, "critic.loss_coef=1e6", "trainer.args.max_steps=1", name="large")
    assert is_same(small.policy[1], large.policy[1])
    assert not is_same(small.policy[0], small.policy[1])
    assert logged(small.folder, "grad_norm") == logged(large.folder, "grad_norm")
    norms = [logged(run.folder, "critic/grad_norm")[0] for run in (small, large)]
    assert norms[1] == pytest.approx(1e12 * norms[0], rel=1e-3)


@pytest.mark.filterwarnings("ignore:`gradient_checkpointing_:FutureWarning")  # of TRL's calls
def test_gradient_checkpointing_changes_no_gradient(watch) -> None:
    calls: list[int] = []

    def begin(seen: Watched) -> None:
        all_in_float64(seen.trainer)
        layer = seen.critic.model.model.layers[0].self_attn
        layer.register_forward_hook(lambda *args: calls.append(1) if torch.is_grad_enabled() else None)

    words = ["critic.init=./rm", "trainer.args.max_steps=1"]
    save_random_reward_model(Path("rm"))
    with no_float32():
        seen = [
            watch(*words, f"trainer.args.gradient_checkpointing={on}", name=f"checkpointing-{on}", on=begin)
            for on in ("false", "true")
        ]
    assert len(calls) == 1 + 2  # with it, a layer's forward pass is done again in the backward one
    for name, gradient in seen[0].gradients[0].items():
        assert_equal(seen[1].gradients[0][name], gradient)
        assert gradient.any() or "embed" in name, name


def test_dropout_is_in_training_and_not_in_what_the_rollout_was_worth(watch) -> None:
    for arrangement in ([], SHARED):
        seen = watch(*arrangement, "critic.dropout=0.5", name=f"dropout{len(arrangement)}", on=spread_head)
        batch = seen.inputs[-1]
        ids, mask, width = prompts_and_completions(batch)
        seen.trainer.model.train()
        with torch.no_grad():
            assert not torch.equal(seen.critic.values(batch), seen.critic.values(batch))
        first, second = (seen.critic.rollout_values(ids, mask, width, 4) for _ in range(2))
        assert torch.equal(first, second)
        assert first.any()
        assert seen.trainer.model.training
        assert seen.critic.model.training


@no_float32()
def test_its_gradient_is_that_of_a_plain_model_with_the_same_adapter(watch, workplace: Path) -> None:
    """In float64: in float32 both sides are 1e-5 of the norm from the exact gradient, and so from each other."""

    def save_it(seen: Watched) -> None:
        all_in_float64(seen.trainer)
        spread_head(seen)
        spread_adapter(seen)
        seen.before_last_step = lambda: seen.critic.save(workplace / "before")

    seen = watch(*SHARED, "trainer.args.max_steps=2", "critic.loss_coef=0.7", "critic.value_clip=null", on=save_it)
    batch, gradients = seen.inputs[-1], seen.gradients[-1]
    plain = AutoPeftModelForTokenClassification.from_pretrained(workplace / "before", num_labels=1, is_trainable=True)
    in_float64(plain.eval())
    set_peft_model_state_dict(plain, load_file(workplace / "before" / "adapter_model.safetensors"))
    ids, mask, width = prompts_and_completions(batch)
    values = plain(input_ids=ids, attention_mask=mask).logits[:, -width - 1 : -1, 0]
    errors = 0.5 * (values - batch["returns"]).square() * batch["completion_mask"]
    # dapo: over the tokens of the round; this is one of its two windows
    (0.7 * errors.sum() / (batch["num_items_in_batch"] / 2)).backward()
    by_name = {
        name.replace(".default.", ".").removeprefix("base_model.model."): parameter.grad
        for name, parameter in plain.named_parameters()
        if parameter.grad is not None
    }
    for name, gradient in gradients.items():
        plainly = name.replace(".critic.", ".").removeprefix("base_model.model.")
        plainly = plainly.replace("critic_head.", "score.modules_to_save.")
        assert_equal(gradient, by_name.pop(plainly))
    assert not by_name
    assert max(gradient.abs().max() for gradient in gradients.values()) > 0.01


def test_generation_and_reference_know_nothing_of_it(watch) -> None:
    """While the policy is held, a critic with another adapter reads the same completions."""
    settings = [*SHARED, "critic.warmup_steps=9", "kl.coef=0.1"]
    quiet = watch(*settings, name="quiet")
    loud = watch(*settings, name="loud", on=lambda seen: (spread_head(seen), spread_adapter(seen)))
    for step in (1, 3):
        assert completions(quiet.folder, step) == completions(loud.folder, step)
    assert logged(loud.folder, "kl/k1_policy_ref") == pytest.approx([0.0, 0.0], **MODEL)
    assert logged(quiet.folder, "entropy") == logged(loud.folder, "entropy")
    assert abs(logged(loud.folder, "ppo/values_mean")[0]) > 0.1  # it is there


def completions(folder: RunFolder, step: int) -> list[str]:
    table = pyarrow.parquet.read_table(folder.path / "completions" / f"completions_{step:05d}.parquet")
    return table.column("completion").to_pylist()


ADAPTER = ("model.lora.r=4", "model.lora.lora_dropout=0.3", "trainer.args.num_iterations=2")
ASKED = "trainer.args.disable_dropout=false"


def move_adapter(seen: Watched) -> None:
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
    save_random_reward_model(Path("rm"))
    config = Path("rm/config.json")
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
