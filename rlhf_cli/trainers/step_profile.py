"""Log where the time went between two log events and how much of a batch is padding.

Waiting is the time in the functions of torch.distributed with which accelerate and TRL gather, reduce and broadcast. It
does not include what engines do in C++ or on their own streams: DDP averages gradients within backward, and a GPU
computes during FSDP's gathers.

Code that passes rows of tokens to a model calls `count` once, right where it calls the model; wrappers that delegate to
such code do not. Without a listener, a call only checks an empty list.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence

import torch
import torch.distributed
from accelerate import Accelerator
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import Tensor

from rlhf_cli.process import temporary_attributes
from rlhf_cli.runs.heartbeat import REWARD, PhaseClock
from rlhf_cli.tables import metrics as columns

_DIGITS = 6
"""A clock is accurate to a microsecond at best, and every log event has some twenty of these numbers."""


class TokenSlots:
    """Counts since they were last taken."""

    _slots: int = 0
    _tokens: int | Tensor = 0

    def add(self, slots: int, tokens: int | Tensor) -> None:
        """Add a pass. A tensor stays on its device until the sum is taken."""
        self._slots += slots
        self._tokens = self._tokens + tokens

    def taken(self) -> tuple[int, int]:
        """Return (slots, real tokens) since the last call."""
        slots, tokens = self._slots, int(self._tokens)
        self._slots, self._tokens = 0, 0
        return slots, tokens


_listeners: list[TokenSlots] = []


def count(slots: int, tokens: int | Tensor) -> None:
    """Record that a model's pass had `slots` positions for `tokens` tokens of the rows.

    Each row counts all its tokens, even if rows share the slots of their prompt, so the ratio may be below 1. `tokens`
    is a number, or a scalar tensor.
    """
    for slots_of in _listeners:
        slots_of.add(slots, tokens)


@contextlib.contextmanager
def counted_slots() -> Iterator[TokenSlots]:
    """Count every pass of this process in this context."""
    counted = TokenSlots()
    _listeners.append(counted)
    try:
        yield counted
    finally:
        _listeners.remove(counted)


@contextlib.contextmanager
def uncounted() -> Iterator[None]:
    """Count no pass in this context: an evaluation's passes are not part of the training."""
    asking = list(_listeners)
    _listeners.clear()
    try:
        yield
    finally:
        _listeners[:] = asking


class StepProfile:
    """Metrics of all ranks' steps, from a clock and a counter of each; `rewards` are names, None for no rollouts."""

    def __init__(
        self, clock: PhaseClock, slots: TokenSlots, rewards: Sequence[str] | None, *, has_critic: bool = False
    ) -> None:
        self._clock, self._slots = clock, slots
        self._keys = [*columns.PHASES, *(f"{REWARD}{name}" for name in rewards or ())]
        self._absent = {columns.WAITING, *(columns.OF_ROLLOUTS if rewards is None else ())}
        if not has_critic:
            self._absent.update(columns.OF_THE_CRITIC)

    def taken(self, accelerator: Accelerator) -> dict[str, float]:
        """Return the metrics of all ranks since the last call: mean times, summed slots. Every rank must call this."""
        seconds, (slots, tokens) = self._clock.taken(), self._slots.taken()
        values = [*(seconds.get(key, 0.0) for key in self._keys), float(slots), float(tokens)]
        if accelerator.num_processes > 1:
            own = torch.tensor(values, dtype=torch.float64, device=accelerator.device)
            values = accelerator.reduce(own, reduction="sum").tolist()
        *times, all_slots, all_tokens = values
        elapsed = sum(times)
        metrics: dict[str, float] = {}
        if elapsed > 0.0:
            metrics[columns.ELAPSED] = round(elapsed / accelerator.num_processes, _DIGITS)
            for key, time in zip(self._keys, times, strict=True):
                if time > 0.0 or key not in self._absent:
                    metrics[f"{columns.SHARE}{key}"] = round(time / elapsed, _DIGITS)
        if all_tokens:
            metrics |= {columns.SLOTS: all_slots, columns.TOKENS: all_tokens}
            metrics[columns.SLOTS_PER_TOKEN] = all_slots / all_tokens
        return metrics


def is_reference(model: torch.nn.Module, reference: object) -> bool:
    """Return whether it is the reference: a separate model, or the policy without its adapter or with TRL's `ref`."""
    if reference is not None:
        return model is reference
    layer = next((module for module in model.modules() if isinstance(module, BaseTunerLayer)), None)
    return layer is not None and (layer.disable_adapters or "ref" in layer.active_adapters)


_COLLECTIVES = (
    *("all_gather", "all_gather_into_tensor", "all_gather_object", "all_reduce", "barrier"),
    *("broadcast", "broadcast_object_list", "gather_object", "reduce"),
)


@contextlib.contextmanager
def timed_waits(clock: PhaseClock, *, settle: Callable[[], object] | None = None) -> Iterator[None]:
    """Report time in collectives to `clock` as waiting; `settle` waits for a GPU, as a collective may return early."""

    def timed(collective: Callable[..., object]) -> Callable[..., object]:
        @functools.wraps(collective)
        def call(*args: object, **named: object) -> object:
            with clock.waiting():
                done = collective(*args, **named)
                if settle is not None:
                    settle()
                return done

        return call

    collectives = {name: timed(getattr(torch.distributed, name)) for name in _COLLECTIVES}
    with temporary_attributes(torch.distributed, **collectives):
        yield
