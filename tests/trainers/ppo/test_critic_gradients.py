"""Gradients of the critic: exchanged between ranks, with checkpointing, and what its values are."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.random_reward_model import save_random_reward_model
from tests.support.watched_critic import SHARED, Watched, spread_head

# When ranks exchange gradients of the critic, what checkpointing changes of them, and what values are.


class Exchanging(torch.nn.Module):
    """Stands for DDP, which settles in the forward pass whether the ranks exchange gradients in the backward one."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self.is_off = False
        self.noted: list[tuple[str, bool]] = []

    def forward(self, **inputs: Any) -> Any:
        self.noted.append(("forward", self.is_off))
        found = self.model(**inputs)
        found.logits.register_hook(lambda gradient: self.noted.append(("backward", self.is_off)))
        return found

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        self.is_off = True
        yield
        self.is_off = False


class TestAccumulation:
    def test_ranks_exchange_gradients_with_the_last_micro_batch_of_a_step_alone(self, watch) -> None:
        ranks: list[Exchanging] = []

        def wrap(seen: Watched) -> None:
            prepare = seen.critic.prepare

            def wrapped(*args: Any) -> None:
                prepare(*args)
                ranks.append(Exchanging(seen.critic._wrapped))
                seen.critic._wrapped = ranks[-1]
                seen.critic.rollout_values = rollout_without(seen.critic, ranks[-1])

            seen.critic.prepare = wrapped

        watch("trainer.args.gradient_accumulation_steps=2", "trainer.args.max_steps=2", on=wrap)
        one_step = [("forward", True), ("backward", True), ("forward", False), ("backward", False)]
        assert ranks[0].noted == one_step * 2

    @pytest.mark.filterwarnings("ignore:`gradient_checkpointing_:FutureWarning")  # of TRL's calls
    def test_gradient_checkpointing_changes_no_gradient(self, watch) -> None:
        calls: list[int] = []

        def count(seen: Watched) -> None:
            layer = seen.critic.model.model.layers[0].self_attn
            layer.register_forward_hook(lambda *args: calls.append(1) if torch.is_grad_enabled() else None)

        words = ["critic.init=./rm", "trainer.args.max_steps=1"]
        save_random_reward_model(Path("rm"))
        seen = [
            watch(*words, f"trainer.args.gradient_checkpointing={on}", name=f"checkpointing-{on}", on=count)
            for on in ("false", "true")
        ]
        assert len(calls) == 1 + 2  # with it, a layer's forward pass is done again in the backward one
        for name, gradient in seen[0].gradients[0].items():
            torch.testing.assert_close(seen[1].gradients[0][name], gradient)
            assert gradient.any() or "embed" in name, name


def rollout_without(critic: Any, wrapper: Exchanging) -> Callable[..., torch.Tensor]:
    """Rollout values from the model itself: without a gradient there is nothing to note."""
    compute = critic.rollout_values

    def run(*args: Any, **named: Any) -> torch.Tensor:
        critic._wrapped = wrapper.model
        try:
            return compute(*args, **named)
        finally:
            critic._wrapped = wrapper

    return run


class TestValues:
    def test_dropout_is_in_training_and_not_in_what_the_rollout_was_worth(self, watch) -> None:
        for arrangement in ([], SHARED):
            seen = watch(*arrangement, "critic.dropout=0.5", name=f"dropout{len(arrangement)}", on=spread_head)
            batch, autocast = seen.inputs[-1], seen.trainer.accelerator.autocast
            ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
            mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
            seen.trainer.model.train()
            with torch.no_grad():
                assert not torch.equal(seen.critic.values(batch, autocast), seen.critic.values(batch, autocast))
            width = batch["completion_ids"].shape[1]
            first, second = (seen.critic.rollout_values(ids, mask, width, 4, autocast) for _ in range(2))
            assert torch.equal(first, second)
            assert first.any()
            assert seen.trainer.model.training
            assert seen.critic.model.training
