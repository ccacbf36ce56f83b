"""A PPO run that was stopped and resumed is the run that never stopped; the best policy comes with its critic."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from rlhf_cli.cli import main
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.trainers.ppo import critic as critic_module
from tests.support.cut_runs import cut, events, goes_on_as, is_same

# A PPO run that was stopped and went on is the run that never stopped, critic and coefficient too.


PPO = (
    "trainer=ppo",
    "critic.learning_rate=1e-2",
    "critic.warmup_steps=3",
    "kl.controller={target: 0.01, horizon: 50}",
    "rewards.brevity.normalize=running",
    "trainer.args.lr_scheduler_type=cosine",
)
"""Everything that has a state: the critic, its optimizer and schedule, the coefficient, a reward's deviation."""


@pytest.mark.parametrize("step", [1, 2, 4, 7])
@pytest.mark.fault(9)
def test_ppo_from_any_step(whole, workplace: Path, step: int) -> None:
    goes_on_as(whole(*PPO), step, workplace / "cut")
    own, theirs = (
        load_file(run.path / "critic" / "model.safetensors") for run in (RunFolder(workplace / "cut"), whole(*PPO))
    )
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in own.items())


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
    assert not is_same(folder, whole(*PPO))


def test_what_ppo_keeps_moves(whole) -> None:
    """Without this, that it is restored would say nothing."""
    logged = events(whole(*PPO))
    assert len({event["kl/coef"] for event in logged if "kl/coef" in event}) > 1
    assert logged[0]["critic/grad_norm"] > 0
    assert len({event["critic/learning_rate"] for event in logged}) == len(logged)
    assert logged[0]["grad_norm"] == 0 < logged[4]["grad_norm"]  # the warm-up's end
