"""Open the store through which ranks find each other, and start gloo with the timeout of `ddp_timeout`.

torch's own store listens on every interface without a password, and holds pickles. So rank 0 opens it at MASTER_ADDR
only; the library that starts the process group then connects to it as to the store of torchrun's agent.
`TrainingArguments._setup_devices` (transformers 5.23, training_args.py:1876) omits the timeout if `use_cpu` is set, and
torch then waits 1800 s for a rank that hangs. accelerate uses an existing process group. On GPUs it also passes the
group to DeepSpeed, but not on a CPU; without the group, each rank of ZeRO-3 behaves as if it were alone.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from datetime import timedelta

from torch import distributed

from rlhf_cli.config.argument_numbers import whole_number
from rlhf_cli.config.trl_args import TrainerFields
from rlhf_cli.plan.meeting_place import MeetingPlace

_IS_OPEN = "TORCHELASTIC_USE_AGENT_STORE"
_STORE_TIMEOUT = timedelta(seconds=300)


def open_store() -> None:
    """Open the ranks' store at MASTER_ADDR only (on rank 0), and make every rank of this machine its client.

    Do nothing if the ranks have no MASTER_ADDR, or if the store is open already.
    """
    if "MASTER_ADDR" not in os.environ or os.environ.get(_IS_OPEN) == "True":
        return
    if os.environ["RANK"] == "0":
        _kept_store(MeetingPlace(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])))
    os.environ[_IS_OPEN] = "True"


@functools.cache
def _kept_store(place: MeetingPlace) -> distributed.TCPStore:
    """Return this process's store, which lives as long as the process."""
    return listening_store(place, _STORE_TIMEOUT)


def listening_store(place: MeetingPlace, timeout: timedelta) -> distributed.TCPStore:
    """Return a new store that listens only at this address. Raise OSError if it cannot listen there."""
    socket = place.listen().detach()  # the store closes it
    return distributed.TCPStore(
        place.host, place.port, None, True, timeout, wait_for_workers=False, master_listen_fd=socket
    )


def start_process_group(trainer: TrainerFields, args: Mapping[str, object], *, deepspeed: bool = False) -> None:
    """Join the other ranks on a CPU within `ddp_timeout` seconds.

    Do nothing if the group exists already, or for a single process without DeepSpeed.
    """
    is_alone = int(os.environ.get("WORLD_SIZE", "1")) == 1
    timeout = timedelta(seconds=whole_number(trainer, args, "ddp_timeout"))
    if deepspeed:
        from deepspeed import comm

        comm.init_distributed("gloo", auto_mpi_discovery=False, timeout=timeout)
    elif not is_alone and not distributed.is_initialized():
        distributed.init_process_group("gloo", timeout=timeout)
