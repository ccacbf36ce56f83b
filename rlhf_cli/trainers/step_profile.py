"""Log where the time went between two log events and how much of a batch is padding.

Code that passes rows of tokens to a model calls `count` once, right where it calls the model; wrappers that delegate to
such code do not. Without a listener, a call only checks an empty list.

Passes of our own that bypass TRL's count themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from accelerate import Accelerator
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import Tensor

from rlhf_cli.runs.phase_clock import REWARD, PhaseClock
from rlhf_cli.tables.metrics import ELAPSED, PHASES, SHARE, SLOTS, SLOTS_PER_TOKEN, TOKENS, Where
from rlhf_cli.trainers.token_slots import TokenSlots, count
from rlhf_cli.trainers.trl_protocol import TrlTrainer

_DIGITS = 6
"""A clock is accurate to a microsecond at best, and every log event has some twenty of these numbers."""


class StepProfile:
    """Combine a clock and a counter of each rank into metrics of all ranks' steps.

    `rewards` are the names of the rewards, None if the trainer does not generate.
    """

    def __init__(
        self, clock: PhaseClock, slots: TokenSlots, rewards: Sequence[str] | None, *, has_critic: bool = False
    ) -> None:
        self._clock, self._slots = clock, slots
        self._keys = [*PHASES, *(f"{REWARD}{name}" for name in rewards or ())]
        self._metrics = [f"{SHARE}{key}" for key in self._keys]
        is_logged: dict[Where, bool] = {"all": True, "rollouts": rewards is not None, "critic": has_critic}
        self._is_logged = [key not in PHASES or is_logged.get(PHASES[key].where, False) for key in self._keys]

    def taken(self, accelerator: Accelerator) -> dict[str, float]:
        """Return the metrics since the last call; every rank must call this.

        Every rank's time has the same weight; slots and tokens are summed.
        """
        seconds, (slots, tokens) = self._clock.taken(), self._slots.taken()
        values = [*(seconds.get(key, 0.0) for key in self._keys), float(slots), float(tokens)]
        if accelerator.num_processes > 1:
            own = torch.tensor(values, dtype=torch.float64, device=accelerator.device)
            values = accelerator.reduce(own, reduction="sum").tolist()
        *times, all_slots, all_tokens = values
        elapsed = sum(times)
        metrics: dict[str, float] = {}
        if elapsed > 0.0:
            metrics[ELAPSED] = round(elapsed / accelerator.num_processes, _DIGITS)
            for name, time, is_logged in zip(self._metrics, times, self._is_logged, strict=True):
                if is_logged or time > 0.0:
                    metrics[name] = round(time / elapsed, _DIGITS)
        if all_tokens:
            metrics |= {SLOTS: all_slots, TOKENS: all_tokens, SLOTS_PER_TOKEN: all_slots / all_tokens}
        return metrics


def is_reference(model: torch.nn.Module, reference: object) -> bool:
    """Return whether `model` acts as the reference.

    The reference is a separate model, the policy without its adapter, or the policy with TRL's adapter `ref`.
    """
    if reference is not None:
        return model is reference
    layer = next((module for module in model.modules() if isinstance(module, BaseTunerLayer)), None)
    return layer is not None and (layer.disable_adapters or "ref" in layer.active_adapters)


_IDS, _PROMPT = "input_ids", "prompt"
"""Prompt ids do not go through a model separately: the ids of the answers include them."""


class CountedRows(TrlTrainer):
    """For a TRL trainer that learns from rows: the model computes all token slots of its batches."""

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **named: Any) -> Any:
        """Return TRL's loss after counting the batch."""
        for name in [name for name in inputs if name.endswith(_IDS) and not name.startswith(_PROMPT)]:
            ids, mask = inputs[name], inputs.get(f"{name.removesuffix(_IDS)}attention_mask")
            if isinstance(ids, Tensor):
                count(ids.numel(), ids.numel() if mask is None else mask.sum())
        return super().compute_loss(model, inputs, *args, **named)


class CountedLogps(TrlTrainer):
    """For a TRL trainer that generates: count the passes that compute log-probabilities."""

    def _get_per_token_logps_and_entropies(
        self,
        model: Any,
        input_ids: Tensor,
        attention_mask: Tensor,
        logits_to_keep: int,
        batch_size: int | None = None,
        compute_entropy: bool = False,
        **others: Any,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        count(input_ids.numel(), attention_mask.sum())
        return super()._get_per_token_logps_and_entropies(
            model, input_ids, attention_mask, logits_to_keep, batch_size, compute_entropy, **others
        )
