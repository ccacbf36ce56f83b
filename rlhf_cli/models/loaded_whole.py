"""Load models unsharded while ZeRO-3 is on, if they are not the model in training.

transformers shards every model it loads once a process's TrainingArguments enable ZeRO-3. That includes a reward model,
which each rank runs on its own, a critic, which is trained outside the engine, and the base that an adapter is merged
into.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from transformers import TrainingArguments
from transformers.integrations.deepspeed import set_hf_deepspeed_config, unset_hf_deepspeed_config


@contextlib.contextmanager
def loaded_whole(args: TrainingArguments) -> Iterator[None]:
    """Open a context in which transformers loads models unsharded, whatever strategy `args` select."""
    # From our own argument, or from accelerate's config file; transformers checks both.
    config = getattr(args, "hf_deepspeed_config", None) or getattr(args.deepspeed_plugin, "dschf", None)
    if config is None:
        yield
        return
    unset_hf_deepspeed_config()
    try:
        yield
    finally:
        set_hf_deepspeed_config(config)
