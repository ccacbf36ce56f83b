"""How TRL computes advantages from totals; numerics/group_advantages.py repeats these steps in this order."""

from __future__ import annotations

import inspect

import pytest
import trl
from trl.trainer.grpo_config import GRPOConfig

from rlhf_cli.analysis.whatif.question import _SCALES

GRPO = [
    "rewards = (rewards_per_func * self.reward_weights.to(device).unsqueeze(0)).nansum(dim=1)",
    "rewards[unscorable_mask] = torch.nan",
    "mean_grouped_rewards = torch.nanmean(rewards.view(-1, num_generations), dim=1)",
    "std_rewards = nanstd(rewards.view(-1, num_generations), dim=1)",
    "std_rewards = nanstd(rewards).expand_as(rewards)",
    "advantages = rewards - mean_grouped_rewards",
    "advantages = advantages / (std_rewards + 1e-4)",
    "advantages = torch.nan_to_num(advantages, nan=0.0)",
]
RLOO = [
    "rewards = (rewards_per_func * self.reward_weights.to(device).unsqueeze(0)).nansum(dim=1)",
    "rewards[unscorable_mask] = torch.nan",
    "rewards = rewards.clamp(min=self.reward_clip_range[0], max=self.reward_clip_range[1])",
    "rewards = rewards - self.beta * kl",
    "baselines = (grouped_sum - grouped_rewards) / (scorable_counts - 1)",
    "advantages = (advantages - torch.nanmean(advantages)) / (nanstd(advantages) + 1e-4)",
    "advantages = torch.nan_to_num(advantages, nan=0.0)",
]


@pytest.mark.parametrize(("trainer", "steps"), [(trl.GRPOTrainer, GRPO), (trl.RLOOTrainer, RLOO)])
def test_the_steps_from_totals_to_advantages(trainer: type, steps: list[str]) -> None:
    source = inspect.getsource(trainer._generate_and_score_completions)
    places = [source.index(step) for step in steps]
    assert places == sorted(places)


def test_what_scale_rewards_may_be() -> None:
    source = inspect.getsource(GRPOConfig.__post_init__)
    assert 'self.scale_rewards = {True: "group", False: "none"}.get(self.scale_rewards, self.scale_rewards)' in source
    assert {True: "group", False: "none"}.items() <= _SCALES.items()


def test_a_table_of_completions_is_written_where_ours_is() -> None:
    source = inspect.getsource(trl.GRPOTrainer.log)
    assert 'f"completions_{self.state.global_step:05d}.parquet"' in source
    assert "deque(maxlen=args.generation_batch_size)" in inspect.getsource(trl.GRPOTrainer.__init__)
