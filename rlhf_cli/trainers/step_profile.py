"""Make metrics of where the time between two log events went, and of how many token slots were computed in it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from accelerate import Accelerator
from peft.tuners.tuners_utils import BaseTunerLayer

from rlhf_cli.runs.phase_clock import REWARD, PhaseClock
from rlhf_cli.tables.step_phases import ELAPSED, PHASES, SHARE, SLOTS, SLOTS_PER_TOKEN, TOKENS, Where
from rlhf_cli.trainers.token_slots import TokenSlots

_DIGITS = 6
"""A clock is not better than a microsecond, and every log event has some twenty of these."""


class StepProfile:
    """What a clock and a counter of this rank make of all ranks' steps.

    `rewards` are the names of the rewards, None where the trainer generates nothing.
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
        """Return the metrics since this was last called: every rank's time counts the same, slots and tokens are
        summed. Every rank calls it.
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
    """Return whether a pass of `model` is one of the reference: a model of its own, or the policy without its adapter
    or with that which TRL calls `ref`.
    """
    if reference is not None:
        return model is reference
    layer = next((module for module in model.modules() if isinstance(module, BaseTunerLayer)), None)
    return layer is not None and (layer.disable_adapters or "ref" in layer.active_adapters)
