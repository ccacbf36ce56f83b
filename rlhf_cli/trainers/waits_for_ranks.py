"""Times how long a rank is inside collectives, without a collective of its own: waiting for others, and the transfer.

It is where accelerate and TRL gather, reduce and broadcast, by the functions of torch.distributed. What engines do in
C++ or on a stream of their own is not in it: DDP averages gradients within backward, and a GPU goes on beside FSDP's
gathers.
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
    """Open a context in which the time inside collectives goes to `clock` as waiting. Where it is not `wanted`, of one
    rank, nothing is done. `settle` waits for a GPU, where a collective returns before it has been done.
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
