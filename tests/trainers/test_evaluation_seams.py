"""What evaluating changes of a trainer for its time, without a training."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rlhf_cli.trainers.evaluation_mixin import EvaluationMixin


class Evaluates:
    """What TRL's trainer reads and leaves behind."""

    def __init__(self, *, is_training: bool) -> None:
        self.args = SimpleNamespace(dataloader_drop_last=True, dataloader_persistent_workers=True)
        self.model = torch.nn.Linear(1, 1).train(is_training)

    def get_eval_dataloader(self, eval_dataset: Any = None) -> tuple[bool, bool]:
        return self.args.dataloader_drop_last, self.args.dataloader_persistent_workers

    def _generate_single_turn(self, prompt: str) -> str:
        self.model.train()  # as TRL 1.16 does after continuous batching
        return f"{prompt} answered"


class Alone(EvaluationMixin, Evaluates):  # type: ignore[misc]
    def __init__(self, **given: Any) -> None:
        Evaluates.__init__(self, **given)


def test_every_row_is_evaluated_and_no_workers_pile_up() -> None:
    trainer = Alone(is_training=True)
    assert trainer.get_eval_dataloader() == (False, False)
    assert vars(trainer.args) == {"dataloader_drop_last": True, "dataloader_persistent_workers": True}


@pytest.mark.parametrize("is_training", [True, False])
def test_a_model_is_left_in_the_mode_it_was_in(is_training: bool) -> None:
    trainer = Alone(is_training=is_training)
    assert trainer._generate_single_turn("p") == "p answered"
    assert trainer.model.training == is_training
