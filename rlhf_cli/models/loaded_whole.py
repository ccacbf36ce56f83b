"""Load models whole that stand beside the one in training, while ZeRO-3 is on.

transformers loads every model in shards as soon as a process's TrainingArguments ask for ZeRO-3: also a reward model,
which answers alone on its rank, a critic, which is trained beside the engine, and the base that an adapter is merged
into.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from transformers import TrainingArguments
from transformers.integrations.deepspeed import set_hf_deepspeed_config, unset_hf_deepspeed_config


@contextlib.contextmanager
def loaded_whole(args: TrainingArguments) -> Iterator[None]:
    """Open a context in which transformers loads models whole, whatever strategy `args` ask for."""
    # Of our own argument, or of what accelerate made of its file; either is what transformers looks at.
    config = getattr(args, "hf_deepspeed_config", None) or getattr(args.deepspeed_plugin, "dschf", None)
    if config is None:
        yield
        return
    unset_hf_deepspeed_config()
    try:
        yield
    finally:
        set_hf_deepspeed_config(config)
