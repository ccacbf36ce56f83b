"""Times the phases of a training and counts its token slots, where `profile` asks for it; torch comes with the rank."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeAlias

from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.runs.phase_clock import PhaseClock
from rlhf_cli.runs.pulse import Pulse
from rlhf_cli.trainers.token_slots import TokenSlots, counted_slots

if TYPE_CHECKING:
    from rlhf_cli.trainers.additions import BuiltWhole

Profiled: TypeAlias = tuple[PhaseClock, TokenSlots]
"""What a trainer is profiled by: a clock that hears its pulse, and a counter of its passes."""


@contextlib.contextmanager
def timed_phases(experiment: Experiment, pulse: Pulse) -> Iterator[Profiled | None]:
    """Open a context in which a clock listens to `pulse` and passes are counted; None where `profile` is off."""
    if experiment.profile == "off":
        yield None
        return
    clock = PhaseClock()
    pulse.listeners.append(clock.hear)
    try:
        with counted_slots() as slots:
            yield clock, slots
    finally:
        pulse.listeners.remove(clock.hear)


@contextlib.contextmanager
def timed_on_device(trainer: BuiltWhole, profiled: Profiled | None) -> Iterator[None]:
    """Open a context in which the clock knows where the trainer computes, and of its waiting for other ranks."""
    if profiled is None:
        yield
        return
    import torch
    from accelerate import DistributedType

    from rlhf_cli.trainers.waits_for_ranks import timed_waits

    clock, _ = profiled
    accelerator = trainer.accelerator
    if str(accelerator.device).startswith("cuda"):
        # A kernel is only asked for; the Trainer itself waits for it after every micro-batch, to look for NaN.
        clock.settle = torch.cuda.synchronize
    # Under FSDP and ZeRO a layer's weights are gathered while another one computes: to wait would end that.
    settle = clock.settle if accelerator.distributed_type == DistributedType.MULTI_GPU else None
    try:
        with timed_waits(clock, wanted=accelerator.num_processes > 1, settle=settle):
            yield
    finally:
        clock.settle = None
