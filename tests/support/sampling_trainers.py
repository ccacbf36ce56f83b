"""TRL's trainers on a tiny policy that ends its answers at different places, alone and with generation of ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import trl
from torch import Tensor

from rlhf_cli.rewards.stack.reward_stack import RewardStack
from rlhf_cli.tables.passes import GenerationSetting
from rlhf_cli.trainers.extensions import Extensions, RewardSetup
from rlhf_cli.trainers.rollout_mixin import RolloutMixin
from tests.support.kept_gradients import random_prompts, trained_on
from tests.support.tiny_decoders import ENDS, VOCABULARY, model_of


class Counted:
    """Mixed in directly above TRL, it counts the passes without a gradient, and keeps what was sampled."""

    passes: int = 0

    def _get_per_token_logps_and_entropies(self, *args: Any, **named: Any) -> Any:
        self.passes += not torch.is_grad_enabled()
        return super()._get_per_token_logps_and_entropies(*args, **named)  # type: ignore[misc]

    def _generate_single_turn(self, *args: Any, **named: Any) -> Any:
        generated = super()._generate_single_turn(*args, **named)  # type: ignore[misc]
        ids = generated if isinstance(self, trl.RLOOTrainer) else generated[0]
        self.sampled = [*getattr(self, "sampled", []), *ids]
        return generated


def trained(
    folder: Path,
    generation: GenerationSetting | None,
    *,
    trainer: str = "GRPO",
    model: Any = None,
    **settings: Any,
) -> tuple[list[Tensor], Any]:
    """Return the gradients of every step and the trainer; `generation` None is TRL's trainer with nothing of ours."""
    trl_trainer = getattr(trl, f"{trainer}Trainer")
    bases: tuple[type, ...] = (Counted, trl_trainer)
    if generation is not None:
        bases = (RolloutMixin, Counted, trl_trainer)
        settings["extensions"] = Extensions(rewards=RewardSetup(stack=RewardStack([]), generation=generation))
    policy = model if model is not None else model_of("llama")
    policy.generation_config.eos_token_id = ENDS
    return trained_on(
        random_prompts(8, VOCABULARY),
        bases,
        folder,
        model=policy,
        **{"gradient_accumulation_steps": 1, "steps_per_generation": 2, "max_steps": 4, **settings},
    )


def distance(found: list[Tensor], expected: list[Tensor]) -> float:
    """Return the largest norm of a difference of gradients over the norm of the one that is right."""
    pairs = zip(found, expected, strict=True)
    return max(float((ours - theirs).norm() / theirs.norm()) for ours, theirs in pairs)
