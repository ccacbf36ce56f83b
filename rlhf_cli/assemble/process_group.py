"""Start gloo with the time that `ddp_timeout` says, which transformers passes on to every backend but the CPU's.

`TrainingArguments._setup_devices` (transformers 5.23, training_args.py:1876) leaves the timeout out where `use_cpu` is
set, and torch then waits 1800 s for a rank that hangs. accelerate takes a process group that is there already. On GPUs
it tells DeepSpeed of the group, too, without which ZeRO-3 takes every rank for the only one; on a CPU nobody does.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import timedelta

import torch.distributed

from rlhf_cli.config.argument_numbers import whole_number
from rlhf_cli.config.trl_args import TrainerFields


def start_process_group(trainer: TrainerFields, args: Mapping[str, object], *, deepspeed: bool = False) -> None:
    """Join the other ranks on a CPU, in the time of `ddp_timeout` seconds; nothing where the group is there, or one
    process has nothing of DeepSpeed's.
    """
    is_alone = int(os.environ.get("WORLD_SIZE", "1")) == 1
    timeout = timedelta(seconds=whole_number(trainer, args, "ddp_timeout"))
    if deepspeed:
        from deepspeed import comm

        comm.init_distributed("gloo", auto_mpi_discovery=False, timeout=timeout)
    elif not is_alone and not torch.distributed.is_initialized():
        torch.distributed.init_process_group("gloo", timeout=timeout)
