"""A round of completions that is made up, of which some are left out, and what a trainer learns from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

NUM_ROWS = 8
KEPT = torch.tensor([True, False, True, True, False, False, True, False])
WIDTH = 6
LENGTHS = torch.tensor([6, 6, 2, 5, 6, 6, 3, 6])


def round_of(trainer: Any, *, is_per_token: bool, seed: int = 0) -> dict[str, Tensor]:
    """Eight ragged rows, with ratios to the rollout of which some are clipped; four are left out as the stack does it.

    A row left out has a zeroed mask, no advantage, and is not in the tokens that are counted.
    """
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    ids = torch.randint(40, 200, (NUM_ROWS, 3 + WIDTH), generator=generator)
    is_token = torch.arange(WIDTH) < LENGTHS.unsqueeze(1)
    mask = is_token & KEPT.unsqueeze(1)
    with torch.no_grad():
        logits = trainer.model(input_ids=ids).logits[:, 2:-1]
    logps = torch.log_softmax(logits / trainer.temperature, dim=-1).gather(2, ids[:, 3:].unsqueeze(2)).squeeze(2)
    old = logps + 0.3 * normal(NUM_ROWS, WIDTH)
    advantages = normal(NUM_ROWS, WIDTH) * mask if is_per_token else normal(NUM_ROWS) * KEPT
    made = {
        "prompt_ids": ids[:, :3],
        "prompt_mask": torch.ones(NUM_ROWS, 3, dtype=torch.long),
        "completion_ids": ids[:, 3:],
        "completion_mask": mask.long(),
        "advantages": advantages,
        "old_per_token_logps": old,
        "ref_per_token_logps": logps + 0.3 * normal(NUM_ROWS, WIDTH),
        "old_logps": (old * mask).sum(dim=1),
        "num_items_in_batch": mask.sum(),
    }
    if is_per_token:
        made |= {"returns": normal(NUM_ROWS, WIDTH) * mask, "rollout_values": 0.1 * normal(NUM_ROWS, WIDTH) * mask}
    return made


def kept_rows(made: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same round without the rows that are left out."""
    return {name: value[KEPT] if value.dim() else value for name, value in made.items()}


@dataclass
class Learned:
    """One optimizer step: the gradient, the loss as it is logged, and the means of the metrics."""

    gradient: Tensor
    loss: float
    metrics: dict[str, float]
    critic_gradient: Tensor | None = None


def learn_from(trainer: Any, made: dict[str, Tensor], num_batches: int) -> Learned:
    """Feed a trainer one round in that many micro-batches, all of them one optimizer step, as `Trainer.train` does."""
    trainer._generate_and_score_completions = lambda inputs: dict(made)
    trainer._step, trainer._buffered_inputs = 0, None
    trainer.args.steps_per_generation = trainer.current_gradient_accumulation_steps = num_batches
    trainer.accelerator.gradient_state._set_sync_gradients(True)
    trainer.model.train()
    trainer.model.zero_grad()
    trainer._metrics["train"].clear()
    critic = getattr(trainer, "critic", None)
    if critic is not None:
        critic.model.zero_grad()
    # RLOO returns a loss that transformers divides by the accumulation; the others divide it themselves.
    divisor = 1 if hasattr(trainer, "loss_type") else num_batches
    total = 0.0
    for _ in range(num_batches):
        inputs = trainer._prepare_inputs([])
        loss = trainer._compute_loss(trainer.model, inputs) / divisor
        loss.backward()
        total += loss.item()
        if critic is not None:
            critic.backward(trainer._value_loss(inputs), is_last=True)
        trainer._step += 1
    metrics = {name: sum(values) / len(values) for name, values in trainer._metrics["train"].items() if values}
    return Learned(_gradient(trainer.model), total, metrics, None if critic is None else _gradient(critic.model))


def _gradient(model: Any) -> Tensor:
    return torch.cat([one.grad.detach().flatten() for one in model.parameters() if one.grad is not None])
