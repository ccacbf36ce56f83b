"""Measure the time that a rank spends inside collectives, waiting and transferring, without additional collectives.

It covers the functions of torch.distributed with which accelerate and TRL gather, reduce and broadcast. It does not
cover what engines do in C++ or on their own streams: DDP averages gradients within backward, and a GPU computes during
FSDP's gathers.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator

import torch.distributed

from rlhf_cli.for_a_while import with_values
from rlhf_cli.runs.phase_clock import PhaseClock

_COLLECTIVES = (
    *("all_gather", "all_gather_into_tensor", "all_gather_object", "all_reduce", "barrier"),
    *("broadcast", "broadcast_object_list", "gather_object", "reduce"),
)


@contextlib.contextmanager
def timed_waits(
    clock: PhaseClock, *, wanted: bool = True, settle: Callable[[], object] | None = None
) -> Iterator[None]:
    """Report the time inside collectives to `clock` as waiting, in this context.

    If not `wanted`, for a single rank, change no function. `settle` waits for a GPU, because a collective may return
    before it has finished.
    """
    if not wanted:
        yield
        return
    timed = {name: _timed(getattr(torch.distributed, name), clock, settle) for name in _COLLECTIVES}
    with with_values(torch.distributed, **timed):
        yield


def _timed(
    collective: Callable[..., object], clock: PhaseClock, settle: Callable[[], object] | None
) -> Callable[..., object]:
    @functools.wraps(collective)
    def timed(*args: object, **named: object) -> object:
        with clock.waiting():
            done = collective(*args, **named)
            if settle is not None:
                settle()
            return done

    return timed
