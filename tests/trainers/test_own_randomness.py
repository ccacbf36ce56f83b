"""An evaluation draws the same random numbers each time, and the training goes on with its own."""

from __future__ import annotations

import random
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
    accelerator = SimpleNamespace(device=torch.device("cpu"), process_index=0)
    trainer: Any = SimpleNamespace(accelerator=accelerator, args=SimpleNamespace(seed=7))
    of_training, of_evaluations = [], []
    for evaluates in (False, True):
        random.seed(0)
        np.random.seed(0)
        torch.manual_seed(0)
        seen = [drawn()]
        for _ in range(2 * evaluates):
            try:
                with EvaluationMixin._own_randomness(trainer):
                    of_evaluations.append(drawn())
                    if is_cut:
                        raise KeyboardInterrupt
            except KeyboardInterrupt:
                pass
        of_training.append([*seen, drawn()])
    assert of_training[0] == of_training[1]
    assert of_evaluations[0] == of_evaluations[1]
    assert not {*of_evaluations} & {*of_training[0]}
