"""The files of a saved critic, what loads them, and how a run resumes with them: as the run that never stopped."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import AutoPeftModelForTokenClassification
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoModelForTokenClassification

from rlhf_cli.cli import main
from rlhf_cli.models.scalar_heads import build_critic
from rlhf_cli.runs.run_folder import read_json
from rlhf_cli.trainers.ppo import critic as critic_module
from rlhf_cli.trainers.ppo.critic import TrainedCritic, prompts_and_completions
from tests.support.cut_runs import cut, events, goes_on_as
from tests.support.cut_runs import is_same as is_same_run
from tests.support.tolerances import assert_close
from tests.support.watched_critic import BOTH, Watched, Weights, is_same

pytestmark = pytest.mark.whole


@pytest.mark.parametrize(
    ("share", "lora"),
    [("none", []), ("none", ["+model.lora.r=4"]), ("lora", ["+model.lora.r=4"])],
    ids=["none-full", "none-lora", "lora-lora"],
)
def test_the_policy_as_grpo_saves_it(train, train_ppo, lora: list[str], share: str) -> None:
    saving = ["trainer.args.save_steps=2", "trainer.args.gradient_checkpointing=false", *lora]
    _, grpo = train(*saving, name="grpo")
    _, ppo = train_ppo(*saving, f"critic.share={share}", name="ppo")
    for place in ("model", "checkpoints/checkpoint-2"):
        with_critic, without = ppo.path / place, grpo.path / place
        assert weights_of(with_critic).keys() == weights_of(without).keys()
        assert subfolders(without) == []
        assert subfolders(with_critic) == ([] if place == "model" else ["critic"])
    if not lora:
        policy = AutoModelForCausalLM.from_pretrained(ppo.model).state_dict()
        assert policy.keys() == AutoModelForCausalLM.from_pretrained(grpo.model).state_dict().keys()
    assert "critic_state.pt" not in {file.name for file in ppo.critic.iterdir()}


@BOTH
def test_transformers_and_peft_load_it_and_another_run_begins_with_it(watch, arrangement: list[str]) -> None:
    """`run:NAME` is that run's critic; one on the policy's body becomes a model of its own."""
    first = watch(*arrangement, "critic.learning_rate=0.01", name="first")
    wanted = values_of(first.critic, first)
    assert wanted.abs().max() > 0.01
    auto = AutoPeftModelForTokenClassification if arrangement else AutoModelForTokenClassification
    loaded = auto.from_pretrained(first.folder.critic, num_labels=1).eval()
    assert_close(values_of(loaded, first), wanted)
    if arrangement:  # PEFT itself wrote the policy's
        ours, policys = (read_json(one / "adapter_config.json") for one in (first.folder.critic, first.folder.model))
        for config in (ours, policys):  # PEFT writes a set
            config["target_modules"] = sorted(config["target_modules"])
        assert {name for name in policys if ours[name] != policys[name]} == {"modules_to_save", "task_type"}
    seen: list[torch.Tensor] = []
    watch("critic.init=run:quickstart/first", name="second", on=lambda one: seen.append(values_of(one.critic, first)))
    assert_close(seen[0], wanted)


def test_the_best_checkpoint_s_critic_is_kept_with_its_policy(watch) -> None:
    """All answers are as long as they may be, so the first evaluation is not bettered."""
    evaluates = ("data.eval.fraction=0.25", "trainer.args.eval_strategy=steps", "trainer.args.eval_steps=1")
    saves = ("trainer.args.save_steps=1", "trainer.args.save_total_limit=null", "critic.learning_rate=0.01")
    best = ("trainer.args.load_best_model_at_end=true", "trainer.args.metric_for_best_model=sampled/tokens")
    seen = watch(*evaluates, *saves, *best)
    first, last = (weights_of(seen.folder.checkpoints / f"checkpoint-{step}" / "critic") for step in (1, 3))
    assert is_same(weights_of(seen.folder.critic), first)
    assert not is_same(first, last)


def test_its_state_goes_on_in_another_critic(watch, workplace: Path, monkeypatch) -> None:
    """Also where it was on a GPU and there is none: the file says so of each of its tensors."""
    seen = watch("critic.learning_rate=0.01", "trainer.args.lr_scheduler_type=cosine")
    path = seen.trainer.model.config.name_or_path
    with monkeypatch.context() as saving:
        saving.setattr("torch.serialization.location_tag", lambda storage: "cuda:99")
        seen.critic.save_state(workplace / "state")
    other = TrainedCritic(build_critic("policy", path, dtype="auto", dropout=0.0), seen.critic.settings)
    other.prepare(seen.trainer, 3)
    assert not torch.equal(values_of(other, seen), values_of(seen.critic, seen))
    for group in other._optimizer.param_groups:
        group["weight_decay"] += 0.25  # it was typed for the resumed run
    other.load_state(workplace / "state")
    for group in other._optimizer.param_groups:
        assert group["weight_decay"] >= 0.25
        group["weight_decay"] -= 0.25
    torch.save({"optimizer": workplace}, workplace / "state" / "critic_state.pt")
    with pytest.raises(pickle.UnpicklingError):  # tensors and numbers alone are read
        other.load_state(workplace / "state")
    rates = list[float]()
    for critic in (other, seen.critic):
        seen.trainer.accelerator.gradient_state._set_sync_gradients(True)
        for group in critic._optimizer.param_groups:
            group["lr"] = 0.01  # the schedule is at its end
        critic.backward((critic.values(seen.inputs[-1]) - 1).square().mean())
        rates.append(critic.step()[0])
    assert rates[0] == rates[1]
    assert is_same(other.model.state_dict(), seen.critic.model.state_dict())


def weights_of(folder: Path) -> Weights:
    weights: Weights = {}
    for file in folder.glob("*.safetensors"):
        weights |= load_file(file)
    assert weights
    return weights


def subfolders(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.is_dir())


def values_of(critic: Any, seen: Watched) -> torch.Tensor:
    """(B, T): what a critic, ours or a plain model, says of the last micro-batch that was seen."""
    batch = seen.inputs[-1]
    ids, mask, width = prompts_and_completions(batch)
    with torch.no_grad():
        if isinstance(critic, torch.nn.Module):
            values = critic(input_ids=ids, attention_mask=mask).logits[:, -width - 1 :, 0]
        else:
            values = critic.rollout_values(ids, mask, width, len(ids))
    lengths = mask[:, -width:].sum(dim=1, keepdim=True)
    return values.where(torch.arange(width + 1) <= lengths, 0.0)


# A PPO run that was stopped and went on is the run that never stopped, critic and coefficient too.


PPO = (
    *("trainer=ppo", "critic.learning_rate=1e-2", "critic.warmup_steps=3", "kl.controller={target: 0.01, horizon: 50}"),
    *("rewards.brevity.normalize=running", "trainer.args.lr_scheduler_type=cosine"),
)
"""Everything that has a state: the critic, its optimizer and schedule, the coefficient, a reward's deviation."""


@pytest.mark.parametrize("step", [1, 2, 4, 7])
@pytest.mark.fault(9)
def test_ppo_from_any_step(whole, workplace: Path, step: int) -> None:
    goes_on_as(whole(*PPO), step, workplace / "cut")
    assert is_same(weights_of(workplace / "cut" / "critic"), weights_of(whole(*PPO).critic))


@pytest.mark.parametrize("step", [2, 5])
def test_ppo_with_a_critic_on_the_policy_s_backbone(whole, workplace: Path, step: int) -> None:
    shared = (*PPO, "+model.lora.r=4", "critic.share=lora")
    goes_on_as(whole(*shared), step, workplace / "cut")


@pytest.mark.fault(9)
def test_negative_control_without_the_critic_s_state_ppo_goes_on_differently(
    whole, workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(critic_module.TrainedCritic, "load_state", lambda self, folder: None)
    folder = cut(whole(*PPO), 4, workplace / "cut")  # the next rollout is judged by the critic as it is then
    assert main(["resume", str(folder.path)]) == 0
    assert not is_same_run(folder, whole(*PPO))


def test_what_ppo_keeps_moves(whole) -> None:
    """Without this, that it is restored would say nothing."""
    logged = events(whole(*PPO))
    assert len({event["kl/coef"] for event in logged if "kl/coef" in event}) > 1
    assert logged[0]["critic/grad_norm"] > 0
    assert len({event["critic/learning_rate"] for event in logged}) == len(logged)
    assert logged[0]["grad_norm"] == 0 < logged[4]["grad_norm"]  # the warm-up's end
