"""Every seam of TRL we lean on, by name. When TRL is upgraded and one has moved, it fails here."""

from __future__ import annotations

import inspect

import pytest
import torch
import trl
from transformers import Trainer
from transformers.trainer_utils import rotate_checkpoints
from trl.trainer.utils import RepeatSampler

from rlhf_cli.trainers.checkpoints import WholeCheckpoints
from rlhf_cli.trainers.compose import with_our_seams
from rlhf_cli.trainers.resume import ExactResume
from rlhf_cli.trainers.reward_stack import WithRewardStack
from rlhf_cli.trainers.seams import InRunFolder

ON_POLICY = [trl.GRPOTrainer, trl.RLOOTrainer]


def parameters(function) -> list[str]:
    return list(inspect.signature(function).parameters)


@pytest.mark.parametrize("trainer", ON_POLICY)
def test_calculate_rewards_takes_inputs_prompts_completions_and_ids(trainer) -> None:
    expected = ["self", "inputs", "prompts", "completions", "completion_ids_list"]
    assert parameters(trainer._calculate_rewards) == expected
    assert parameters(WithRewardStack._calculate_rewards) == expected


@pytest.mark.parametrize("trainer", ON_POLICY)
def test_log_takes_logs_and_start_time(trainer) -> None:
    assert parameters(trainer.log) == ["self", "logs", "start_time"] == parameters(WithRewardStack.log)


@pytest.mark.parametrize("trainer", ON_POLICY)
def test_rewards_are_passed_as_functions_and_weights(trainer) -> None:
    assert "reward_funcs" in parameters(trainer)
    source = inspect.getsource(trainer)
    for name in ("self.reward_weights", "self._log_completion_extra", "self._pending_extra_logs", "self._logs"):
        assert name in source, name


@pytest.mark.parametrize("trainer", ON_POLICY)
def test_tables_hold_prompt_completion_rewards_extra_advantages(trainer) -> None:
    source = inspect.getsource(trainer)
    for key in ("prompt", "completion", "rewards", "extra", "advantages"):
        assert f'self._logs["{key}"]' in source


def test_checkpoints_go_where_get_output_dir_says() -> None:
    assert parameters(Trainer._get_output_dir) == ["self", "trial"] == parameters(InRunFolder._get_output_dir)
    assert "self._get_output_dir(trial=trial)" in inspect.getsource(Trainer._save_checkpoint)


@pytest.mark.parametrize("trainer", [*ON_POLICY, trl.SFTTrainer, trl.DPOTrainer])
def test_a_checkpoint_is_saved_by_one_method_that_asks_where_to(trainer) -> None:
    assert parameters(trainer._save_checkpoint) == ["self", "model", "trial"] == parameters(Trainer._save_checkpoint)
    assert parameters(WholeCheckpoints._save_checkpoint) == ["self", "model", "trial"]
    source = inspect.getsource(trainer._save_checkpoint)
    assert ("checkpoint_folder" in source) == ("self._get_output_dir(trial=trial)" in source)
    assert parameters(WholeCheckpoints._get_output_dir) == ["self", "trial"]


def test_the_trainer_names_the_best_checkpoint_by_step_and_rotates_where_it_saves() -> None:
    source = inspect.getsource(Trainer._save_checkpoint)
    for text in ("self.state.best_global_step", "self.state.best_model_checkpoint =", "rotate_checkpoints("):
        assert text in source, text
    expected = ["output_dir", "save_total_limit", "best_model_checkpoint", "use_mtime", "checkpoint_prefix"]
    assert parameters(rotate_checkpoints) == expected
    assert parameters(Trainer._push_from_checkpoint) == ["self", "checkpoint_folder"]
    assert "self._push_from_checkpoint(output_dir)" in source


@pytest.mark.parametrize("trainer", ON_POLICY)
def test_rollouts_are_buffered_in_two_attributes(trainer) -> None:
    source = inspect.getsource(trainer._prepare_inputs)
    assert "generate_every = self.args.steps_per_generation * self.num_iterations" in source
    assert "if self._step % generate_every == 0 or self._buffered_inputs is None:" in source
    assert "self._buffered_inputs[self._step % self.args.steps_per_generation]" in source
    assert 'self._metrics = {"train": defaultdict(list)' in inspect.getsource(trainer)
    assert "_load_optimizer_and_scheduler" in dir(trainer)
    assert parameters(trainer._load_optimizer_and_scheduler) == ["self", "checkpoint"]


@pytest.mark.parametrize("trainer", ON_POLICY)
def test_the_sampler_draws_one_permutation_an_epoch_from_one_generator(trainer) -> None:
    assert parameters(trainer._get_train_sampler) == ["self", "dataset"] == parameters(ExactResume._get_train_sampler)
    assert "return RepeatSampler(" in inspect.getsource(trainer._get_train_sampler)
    sampler = RepeatSampler(range(7), mini_repeat_count=1, seed=3)
    generator = torch.Generator().manual_seed(3)
    for _ in range(3):
        assert list(sampler) == torch.randperm(7, generator=generator).tolist()


def test_a_resumed_trainer_loads_state_then_optimizer_then_zeroes_its_loss_then_loads_random_numbers() -> None:
    """What is restored at one seam would be overwritten at an earlier one."""
    source = inspect.getsource(Trainer._inner_training_loop)
    order = ["self._init_training_state(", "self._prepare_for_training(", "self._tr_loss =", "self._run_epoch("]
    order.insert(0, "self.get_train_dataloader()")
    places = [source.index(text) for text in [*order[:4], "self._globalstep_last_logged =", order[4]]]
    assert places == sorted(places)
    assert "self._load_optimizer_and_scheduler(" in inspect.getsource(Trainer._prepare_for_training)
    assert inspect.getsource(Trainer._run_epoch).count("self._load_rng_state(resume_from_checkpoint)") == 2
    assert parameters(Trainer._load_rng_state) == ["self", "checkpoint"]


@pytest.mark.parametrize(
    "name", ["GRPOTrainer", "RLOOTrainer", "SFTTrainer", "DPOTrainer", "KTOTrainer", "RewardTrainer"]
)
def test_a_config_class_is_named_after_its_trainer(name: str) -> None:
    assert hasattr(trl, name.removesuffix("Trainer") + "Config")


@pytest.mark.parametrize("trainer", ON_POLICY)
def test_our_subclass_keeps_trls_name_and_puts_the_stack_first(trainer) -> None:
    ours = with_our_seams(trainer)
    assert ours.__name__ == trainer.__name__
    assert ours._calculate_rewards is WithRewardStack._calculate_rewards
    assert ours.__mro__.index(WithRewardStack) < ours.__mro__.index(trainer)
    assert ours.__mro__[1] is WholeCheckpoints
    assert issubclass(ours, ExactResume)


def test_a_trainer_without_rewards_gets_no_stack() -> None:
    ours = with_our_seams(trl.SFTTrainer)
    assert not issubclass(ours, WithRewardStack)
    assert not issubclass(ours, ExactResume)
    assert ours.__mro__[1] is WholeCheckpoints
