"""An evaluation draws the same random numbers each time, and the training continues with its own."""

from __future__ import annotations

import random
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from rlhf_cli.trainers.evaluation_mixin import EvaluationMixin


def drawn() -> tuple[float, float, float]:
    return random.random(), float(np.random.random()), float(torch.rand(()))


@pytest.mark.parametrize("is_cut", [False, True])
def test_the_training_draws_as_if_there_had_been_no_evaluation(is_cut: bool) -> None:
    accelerator = SimpleNamespace(device=torch.device("cpu"), process_index=7)
    trainer: Any = SimpleNamespace(accelerator=accelerator, args=SimpleNamespace(seed=0))  # NumPy refuses one below 0
    of_training, of_evaluations = [], []
    for evaluates in (False, True):
        random.seed(0)
        np.random.seed(0)
        torch.manual_seed(0)
        seen = [drawn()]
        for _ in range(2 * evaluates):
            with suppress(KeyboardInterrupt), EvaluationMixin._own_randomness(trainer):
                of_evaluations.append(drawn())
                if is_cut:
                    raise KeyboardInterrupt
        of_training.append([*seen, drawn()])
    assert of_training[0] == of_training[1]
    assert of_evaluations[0] == of_evaluations[1]
    assert not {*of_evaluations} & {*of_training[0]}


def test_an_evaluation_reads_all_rows_and_changes_no_setting_of_the_training() -> None:
    class Trl:
        def get_eval_dataloader(self: Any, rows: str) -> tuple[Any, ...]:
            return rows, self.args.dataloader_drop_last, self.args.dataloader_persistent_workers

    trainer: Any = object.__new__(type("Trainer", (EvaluationMixin, Trl), {}))
    trainer.args = SimpleNamespace(dataloader_drop_last=True, dataloader_persistent_workers=True)
    assert trainer.get_eval_dataloader("rows") == ("rows", False, False)
    assert set(vars(trainer.args).values()) == {True}

    trainer.use_vllm, trainer.vllm_generation = True, SimpleNamespace(temperature=0.7)
    trainer.num_generations_eval, trainer._metrics, trainer._logs = 4, {"train": 1, "eval": 2}, {}
    with trainer._greedily():
        assert (trainer.vllm_generation.temperature, trainer.num_generations_eval) == (0.0, 1)
        assert trainer._metrics == {"train": 1, "eval": {}}
    assert (trainer.vllm_generation.temperature, trainer.num_generations_eval) == (0.7, 4)
