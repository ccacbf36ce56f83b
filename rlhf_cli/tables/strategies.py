"""List the values of `launch.strategy`, one row per value: what a process holds, and which features do not work.

Working features were run on CPUs, with two processes against DDP (tests/launch/test_strategies_agree.py;
docs/how-to/launch.md lists what a CPU cannot show). The others were tried there, or judged from the source of TRL 1.16,
accelerate 1.15 and transformers 5.23.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Feature = Literal[
    "critic.share=lora",
    "critic.warmup_steps",
    "model.quantize",
    "sync_ref_model",
    "rollout=continuous",
    "offload",
    "teacher",
]
"""Features of an experiment that some strategy does not support."""

Conflicts = dict[Feature, tuple[str, str]]  # feature -> why it does not work with a strategy, and what to type instead


@dataclass(frozen=True)
class StrategyRow:
    """A strategy. `zero_stage` is DeepSpeed's, None without it. `holds` says in words which part of the model every
    process holds, `memory_stage` what is divided: from 1 on the optimizer, from 2 on also gradients, from 3 on also
    weights. `distributed_types` are accelerate's names for it with several processes; with one, sharding strategies
    have the same name, and DDP counts as not distributed. `package` has to be installed for it.
    """

    name: str
    holds: str
    distributed_types: frozenset[str]
    zero_stage: int | None = None
    memory_stage: int = 0
    package: str | None = None
    runs_on_cpu: bool = True
    conflicts: Conflicts = field(default_factory=dict)


_DDP = "launch.strategy=ddp"
_ZERO: Conflicts = {
    "critic.share=lora": (
        "the critic's adapter is on the policy's body, which the strategy shards and calls only as a whole",
        f"critic.share=none, or {_DDP}",
    ),
    "critic.warmup_steps": (
        "DeepSpeed's engine steps at the end of its backward pass, and the policy would be trained from the first step",
        f"critic.warmup_steps=0, or {_DDP}",
    ),
    "sync_ref_model": (
        "the moving reference is not in the checkpoints of a sharded run, which could not be resumed",
        f"trainer.args.sync_ref_model=false, or {_DDP}",
    ),
}
_FSDP: Conflicts = _ZERO | {
    "critic.warmup_steps": (
        "torch makes the state of an optimizer that never stepped by a step of zeros when it saves it, so that"
        " a checkpoint during the warm-up would change the run",
        f"critic.warmup_steps=0, or {_DDP}",
    ),
    "model.quantize": (
        "accelerate leaves 4-bit weights out of the shards (bitsandbytes keeps them as uint8): every GPU holds all",
        _DDP,
    ),
    "rollout=continuous": (
        "each process would take another number of forward passes, and each pass waits for all processes",
        "launch.rollout=hf, or launch.rollout=vllm",
    ),
    "teacher": ("accelerate shards a model only with its optimizer, and a teacher has none", "launch.strategy=zero3"),
}
_ON_ALL: Conflicts = {
    "offload": ("every process holds all of the model", "launch.strategy=fsdp2, or launch.strategy=zero3")
}
_ZERO_3: Conflicts = _ZERO | {
    "model.quantize": ("bitsandbytes keeps 4-bit weights as uint8, which ZeRO-3 cannot shard", "launch.strategy=zero2")
}
_SHARD = "a shard of weights, gradients and optimizer"
_ROWS = (
    StrategyRow("ddp", "all of it", frozenset({"NO", "MULTI_CPU", "MULTI_GPU"}), conflicts=_ON_ALL),
    StrategyRow("fsdp2", _SHARD, frozenset({"FSDP"}), memory_stage=3, runs_on_cpu=False, conflicts=_FSDP),
    *(
        StrategyRow(f"zero{stage}", holds, frozenset({"DEEPSPEED"}), stage, stage, "deepspeed", conflicts=conflicts)
        for stage, holds, conflicts in (
            (1, "all of it but a shard of the optimizer", _ZERO),
            (2, "all weights, a shard of gradients and optimizer", _ZERO),
            (3, _SHARD, _ZERO_3),
        )
    ),
)

STRATEGIES: dict[str, StrategyRow] = {row.name: row for row in _ROWS}  # `launch.strategy` -> row
