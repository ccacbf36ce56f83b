"""Time the phases of a training and count its token slots if `profile` is on; the rank has imported torch."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeAlias

from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.runs.heartbeat import Heartbeat
from rlhf_cli.runs.phase_clock import PhaseClock
from rlhf_cli.trainers.token_slots import TokenSlots, counted_slots

if TYPE_CHECKING:
    from rlhf_cli.trainers.extensions import ExtendedTrainer

Profiled: TypeAlias = tuple[PhaseClock, TokenSlots]
"""The profiler of a trainer: a clock that listens to its heartbeat, and a counter of its token slots."""


@contextlib.contextmanager
def timed_phases(experiment: Experiment, heartbeat: Heartbeat) -> Iterator[Profiled | None]:
    """Open a context in which a clock listens to `heartbeat` and token slots are counted; None if `profile` is off."""
    if experiment.profile == "off":
        yield None
        return
    clock = PhaseClock()
    heartbeat.listeners.append(clock.hear)
    try:
        with counted_slots() as slots:
            yield clock, slots
    finally:
        heartbeat.listeners.remove(clock.hear)


@contextlib.contextmanager
def timed_on_device(trainer: ExtendedTrainer, profiled: Profiled | None) -> Iterator[None]:
    """Open a context in which the clock knows the trainer's device, and its waiting times for other ranks."""
    if profiled is None:
        yield
        return
    import torch
    from accelerate import DistributedType

    from rlhf_cli.trainers.step_profile import timed_waits

    clock, _ = profiled
    accelerator = trainer.accelerator
    if str(accelerator.device).startswith("cuda"):
        # Kernels are asynchronous. The Trainer itself waits for them after every micro-batch, to look for NaN.
        clock.settle = torch.cuda.synchronize
    # FSDP and ZeRO gather a layer's weights while another layer computes; waiting would prevent this overlap.
    settle = clock.settle if accelerator.distributed_type == DistributedType.MULTI_GPU else None
    try:
        with timed_waits(clock, wanted=accelerator.num_processes > 1, settle=settle):
            yield
    finally:
        clock.settle = None
