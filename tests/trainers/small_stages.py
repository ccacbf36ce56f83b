"""What to type for the stages that learn from rows, kept small, and what they end with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file

from rlhf_cli.runs.run_folder import RunFolder

TINY = [
    *("model.build.hidden_size=16", "model.build.num_layers=1", "model.build.num_heads=2"),
    "model.build.warm_start=null",
]
SMALL_STAGE = [
    *("trainer.args.max_steps=4", "trainer.args.per_device_train_batch_size=8", "trainer.args.eval_steps=2"),
    *("trainer.args.learning_rate=0.01", "trainer.args.warmup_steps=0", "data.args.num_rows=60"),
    *("launch=cpu", "track=none", "trainer.args.gradient_checkpointing=false"),
]
STAGES = ["sft", "dpo", "kto", "reward"]
Stage = Callable[..., tuple[int, RunFolder]]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    (file,) = folder.glob("*.safetensors")
    return load_file(file)
