"""One step of a TRL trainer, and of ours over it, from the same given rollouts: gradients and metrics to compare."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import torch
import trl
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from rlhf_cli.rewards.stack.reward_stack import RewardStack
from rlhf_cli.tables.passes import PassSetting
from rlhf_cli.trainers.extensions import Extensions, RewardSetup
from rlhf_cli.trainers.pass_mixin import PassMixin
from tests.support.float64 import all_in_float64, no_float32
from tests.trainers.kept_gradients import EOS, LONGEST, PAD, random_prompts, trained_on

VOCABULARY = 64


def policy(**settings: Any) -> LlamaForCausalLM:
    """A tiny Llama whose attention matters: with the usual small weights every row would look alike."""
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    given = {"num_key_value_heads": 2, "initializer_range": 0.15, "pad_token_id": PAD, "eos_token_id": EOS}
    return LlamaForCausalLM(LlamaConfig(**{"vocab_size": VOCABULARY, **shape, **given, **settings}))


def prompts() -> list[list[int]]:
    """Prompts of one to six words, two of them alike but for the last word."""
    texts = random_prompts(2, VOCABULARY)
    texts[1] = [*texts[0][:-1], 3]
    return texts


class Given:
    """Mixed into a TRL trainer, it answers without a model: the n-th answer is always the same."""

    _answers: torch.Generator

    def _generate_single_turn(self, prompt_ids: list[Any], *_: Any, **__: Any) -> Any:
        if not hasattr(self, "_answers"):
            self._answers = torch.Generator().manual_seed(2)
        answers = []
        for _one in prompt_ids:
            length = int(torch.randint(1, LONGEST + 1, (), generator=self._answers))
            ids = torch.randint(2, VOCABULARY, (length,), generator=self._answers).tolist()
            answers.append([*ids[:-1], EOS] if length < LONGEST else ids)
        return answers if isinstance(self, trl.RLOOTrainer) else (answers, None)


def trained(
    folder: Path,
    passes: PassSetting | None,
    *,
    trainer: str = "GRPO",
    model: Any = None,
    mixed: tuple[type, ...] = (),
    dtype: torch.dtype = torch.float32,
    **settings: Any,
) -> tuple[list[Tensor], Any]:
    """Return the gradients of every step and the trainer; `passes` None runs TRL's trainer without our mixins."""
    trl_trainer = getattr(trl, f"{trainer}Trainer")
    bases: tuple[type, ...] = (Given, *mixed, trl_trainer)
    if passes is not None:
        bases = (Given, PassMixin, *mixed, trl_trainer)
        settings["extensions"] = Extensions(rewards=RewardSetup(stack=RewardStack([]), passes=passes))
    is_exact = dtype is torch.float64
    with no_float32() if is_exact else contextlib.nullcontext():
        return trained_on(
            prompts(),
            bases,
            folder,
            model=(model if model is not None else policy()).to(dtype),
            prepare=all_in_float64 if is_exact else None,
            **{"gradient_accumulation_steps": 4, "max_steps": 1, **settings},
        )
