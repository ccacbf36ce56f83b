"""A small PPO run, and what was seen of its critic and policy at every step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from transformers import TrainerCallback

from rlhf_cli.runs.metrics_file import read_metrics, series
from rlhf_cli.runs.run_folder import RunFolder

Weights = dict[str, torch.Tensor]
SHARED = ["+model.lora.r=4", "critic.share=lora", "trainer.args.gradient_checkpointing=false"]
BOTH = pytest.mark.parametrize("arrangement", [[], SHARED], ids=["separate", "shared"])


class Watched(TrainerCallback):
    """Notes weights after every step, and the critic's gradients, as they are clipped, at every step of its own."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        self.critic = trainer.critic
        self.policy: list[Weights] = []
        self.values: list[Weights] = []
        self.gradients: list[Weights] = []
        self.clipped: list[float] = []
        self.used_learning_rates: list[float] = []
        self.inputs: list[dict[str, Any]] = []
        """The last micro-batch of every step."""
        self.before_last_step: Callable[[], None] = lambda: None
        trainer.add_callback(self)
        step = self.critic.step
        self.critic.step = lambda: self._step(step)

    def named(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        """The critic's own parameters."""
        own = {id(parameter) for parameter in self.critic.parameters()}
        named = self.critic.model.named_parameters()
        return ((name, parameter) for name, parameter in named if id(parameter) in own)

    def on_train_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        self.on_step_end(args, state, control)

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        own = {name for name, _ in self.named()} if self.critic.shares_backward else set()
        policy = self.trainer.model.state_dict()
        self.policy.append({name: value.clone() for name, value in policy.items() if name not in own})
        self.values.append({name: parameter.detach().clone() for name, parameter in self.named()})

    def _step(self, step: Callable[[], float]) -> float:
        optimizer = self.critic._optimizer
        self.gradients.append({name: parameter.grad.clone() for name, parameter in self.named()})
        self.inputs.append(self.trainer._micro_batch)
        self.used_learning_rates.append(optimizer.param_groups[0]["lr"])
        if self.trainer.state.global_step == self.trainer.state.max_steps - 1:
            self.before_last_step()
        note = optimizer.step

        def clipped_step(*args: Any, **named: Any) -> Any:
            norms = [parameter.grad.norm() for _, parameter in self.named()]
            self.clipped.append(torch.stack(norms).norm().item())
            return note(*args, **named)

        optimizer.step = clipped_step
        try:
            return step()
        finally:
            del optimizer.step


def is_same(one: Weights, other: Weights) -> bool:
    assert one.keys() == other.keys()
    return all(torch.equal(value, other[name]) for name, value in one.items())


def logged(folder: RunFolder, name: str) -> list[float]:
    return series(read_metrics(folder.metrics), name)[1]


def spread_head(seen: Watched) -> None:
    """A head that is not 0, so that what is before it shows."""
    head = seen.critic.model.critic_head if seen.critic.shares_backward else seen.critic.model.score
    torch.nn.init.normal_(head.weight, generator=torch.Generator().manual_seed(1))


def spread_adapter(seen: Watched) -> None:
    """An adapter that is not 0: as it begins, it would change nothing even if it were active."""
    generator = torch.Generator().manual_seed(2)
    for name, parameter in seen.named():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, generator=generator)
