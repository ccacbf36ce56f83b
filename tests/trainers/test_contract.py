"""Every seam of TRL we lean on, by name. When TRL is upgraded and one has moved, it fails here."""

from __future__ import annotations

import inspect

import pytest
import trl
from transformers import Trainer

from rlhf_cli.trainers.compose import with_our_seams
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


def test_a_trainer_without_rewards_gets_no_stack() -> None:
    assert not issubclass(with_our_seams(trl.SFTTrainer), WithRewardStack)
