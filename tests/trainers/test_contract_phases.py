"""The seams of TRL, transformers and accelerate by which the time of a step is divided and its tokens are counted."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest
import torch
import trl
from accelerate.utils import operations
from torch.optim.lr_scheduler import LambdaLR
from transformers import Trainer, get_scheduler
from transformers.trainer_utils import speed_metrics
from trl.trainer.grpo_config import GRPOConfig

from rlhf_cli.trainers.assemble.algorithm import _SCALES
from rlhf_cli.trainers.logging_mixin import LoggingMixin
from rlhf_cli.trainers.pass_mixin import PassMixin
from rlhf_cli.trainers.rollout_mixin import RolloutMixin
from rlhf_cli.trainers.step_profile import _COLLECTIVES
from tests.support.signatures import ON_POLICY, parameters

OF_ROWS = [trl.SFTTrainer, trl.DPOTrainer, trl.KTOTrainer, trl.RewardTrainer]


def test_an_epoch_reads_rows_takes_steps_and_clips_by_one_method_each() -> None:
    source = inspect.getsource(Trainer._run_epoch)
    calls = [
        "self.get_batch_samples(epoch_iterator, num_batches, self.args.device)",
        "self.training_step(model, inputs, num_items_in_batch)",
        "self._clip_grad_norm(model)",
        "self.callback_handler.on_pre_optimizer_step(",
        "self.optimizer.step()",
        "self.callback_handler.on_optimizer_step(",
    ]
    places = [source.index(call) for call in calls]
    assert places == sorted(places)
    assert parameters(Trainer.get_batch_samples) == parameters(LoggingMixin.get_batch_samples)
    assert parameters(Trainer._clip_grad_norm) == ["self", "model"] == parameters(LoggingMixin._clip_grad_norm)


@pytest.mark.parametrize("trainer", [*OF_ROWS, *ON_POLICY])
def test_a_loss_is_asked_for_a_model_and_a_batch(trainer: Any) -> None:
    assert (
        parameters(trainer.compute_loss)[:3] == ["self", "model", "inputs"] == parameters(LoggingMixin.compute_loss)[:3]
    )


def test_what_is_logged_while_it_trains_has_a_loss_and_in_the_end_a_runtime() -> None:
    assert 'logs["loss"] = ' in inspect.getsource(Trainer._maybe_log_save_evaluate)
    assert "train_runtime" in speed_metrics("train", 0.0)
    assert "self.log(metrics)" in inspect.getsource(Trainer._finalize_training)


@pytest.mark.parametrize("trainer", ON_POLICY)
def test_log_probabilities_are_computed_by_one_method_that_is_given_the_reference(trainer: Any) -> None:
    expected = ["self", "model", "input_ids", "attention_mask", "logits_to_keep", "batch_size", "compute_entropy"]
    theirs = trainer._get_per_token_logps_and_entropies
    for method in (theirs, *(one._get_per_token_logps_and_entropies for one in (RolloutMixin, PassMixin))):
        assert parameters(method)[: len(expected)] == expected
    source = inspect.getsource(trainer._generate_and_score_completions)
    assert "self._get_per_token_logps_and_entropies(\n                        self.ref_model," in source
    assert 'use_adapter(model, adapter_name="ref" if "ref" in model.peft_config else None)' in source


@pytest.mark.parametrize("trainer", [trl.DPOTrainer, trl.KTOTrainer])
def test_a_trainer_of_rows_calls_its_reference_within_the_loss(trainer: Any) -> None:
    assert "self.ref_model(**" in inspect.getsource(trainer._compute_loss)


@pytest.mark.parametrize("trainer", OF_ROWS)
def test_batches_of_rows_have_ids_and_a_mask_beside_them(trainer: Any) -> None:
    source = inspect.getsource(inspect.getmodule(trainer))  # type: ignore[arg-type]
    assert 'output["input_ids"] = ' in source
    assert 'output["attention_mask"] = ' in source


def test_accelerate_asks_torch_distributed_for_its_collectives_when_it_needs_them() -> None:
    """An imported name would still be the function without timing."""
    source = inspect.getsource(operations)
    imported = " ".join(re.findall(r"from torch\.distributed import (.*)", source))
    assert not set(_COLLECTIVES) & set(re.findall(r"\w+", imported))
    for name in ("all_gather", "all_gather_into_tensor", "all_gather_object", "all_reduce", "broadcast"):
        assert name in _COLLECTIVES
        assert f"torch.distributed.{name}" in source


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


def test_an_epoch_is_one_method_and_what_it_leaves_in_control_ends_training() -> None:
    loop = inspect.getsource(Trainer._inner_training_loop)
    after = loop[loop.index("self._run_epoch(") :]
    assert "if self.control.should_training_stop:" in after
    assert "max_steps" not in parameters(Trainer._run_epoch)  # it asks only after a step: so one step too many


@pytest.mark.parametrize(
    "name",
    ["linear", "cosine", "constant", "constant_with_warmup", "inverse_sqrt", "polynomial", "cosine_with_restarts"],
)
def test_schedules_are_a_factor_a_step(name: str) -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.5)
    schedule = get_scheduler(name, optimizer, num_warmup_steps=2, num_training_steps=9)
    assert isinstance(schedule, LambdaLR)
    for _ in range(5):
        optimizer.step()
        schedule.step()
    assert optimizer.param_groups[0]["lr"] == schedule.base_lrs[0] * schedule.lr_lambdas[0](schedule.last_epoch)
