"""The methods of transformers through which typed values count in a resumed run. A change fails here."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch.optim.lr_scheduler import LambdaLR
from transformers import Trainer, TrainerState, get_scheduler

from rlhf_cli.trainers.checkpoint_mixin import CheckpointMixin
from tests.support.signatures import parameters


def test_the_state_comes_from_the_checkpoint_before_optimizer_and_schedule() -> None:
    loop = inspect.getsource(Trainer._inner_training_loop)
    assert loop.index("self._init_training_state(") < loop.index("self._prepare_for_training(")
    assert "TrainerState.load_from_json" in inspect.getsource(Trainer._init_training_state)
    prepare = inspect.getsource(Trainer._prepare_for_training)
    assert prepare.index("self.create_scheduler(") < prepare.index("self._load_optimizer_and_scheduler(")
    assert parameters(TrainerState.compute_steps) == ["self", "args", "max_steps"]


def test_an_epoch_is_one_method_and_what_it_leaves_in_control_ends_training() -> None:
    loop = inspect.getsource(Trainer._inner_training_loop)
    after = loop[loop.index("self._run_epoch(") :]
    assert "if self.control.should_training_stop:" in after
    assert "max_steps" not in parameters(Trainer._run_epoch)  # it asks only after a step: so one step too many


def test_random_numbers_are_loaded_by_one_method() -> None:
    assert parameters(Trainer._load_rng_state) == ["self", "checkpoint"] == parameters(CheckpointMixin._load_rng_state)
    assert "logger.info" in inspect.getsource(Trainer._load_rng_state)  # and without their file it goes on


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
