"""Translate `launch.strategy` to transformers' TrainingArguments, which TRL's configs inherit.

FSDP's version is explicit although 2 is transformers' default, because accelerate's own default is 1. The state dict is
full, so that the saved model loads without the run. DeepSpeed's numbers are "auto": transformers fills in batch size,
learning rate, clipping and precision from the arguments that all strategies use.
"""

from __future__ import annotations

from rlhf_cli.config.schema.launch_section import Launch
from rlhf_cli.json_values import JsonTree
from rlhf_cli.tables.strategies import STRATEGIES


def strategy_args(launch: Launch) -> dict[str, object]:
    """Return the arguments that make a trainer shard its model; empty for DDP.

    Also return no arguments if an accelerate config file is used: it is in the environment of the ranks, and these
    arguments would override it.
    """
    if launch.accelerate_config is not None:
        return {}
    stage = STRATEGIES[launch.strategy].zero_stage
    if stage is not None:
        return {"deepspeed": _deepspeed(stage, offload=launch.offload)}
    if launch.strategy != "fsdp2":
        return {}
    args: dict[str, object] = {"fsdp": True, "fsdp_config": _fsdp2(offload=launch.offload)}
    if launch.offload:
        args["ddp_backend"] = "cuda:nccl,cpu:gloo"  # sums the norm of gradients on the CPU
    return args


def _fsdp2(*, offload: bool) -> JsonTree:
    return {
        "version": 2,
        "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "reshard_after_forward": True,
        "state_dict_type": "FULL_STATE_DICT",
        "cpu_offload": offload,
        "cpu_ram_efficient_loading": False,  # every rank loads: TRL makes its reference model and adapters after it
    }


def _deepspeed(stage: int, *, offload: bool) -> JsonTree:
    zero: JsonTree = {
        "stage": stage,
        "overlap_comm": True,
        "contiguous_gradients": True,
        "reduce_bucket_size": "auto",
    }
    if stage == 3:
        zero |= {
            "stage3_prefetch_bucket_size": "auto",
            "stage3_param_persistence_threshold": "auto",
            "stage3_gather_16bit_weights_on_model_save": True,
        }
    if offload:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
        if stage == 3:
            zero["offload_param"] = {"device": "cpu", "pin_memory": True}
    return {
        "zero_optimization": zero,
        "bf16": {"enabled": "auto"},
        "fp16": {"enabled": "auto"},
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto",
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        # The Trainer creates the configured optimizer, also if it is offloaded.
        "zero_force_ds_cpu_optimizer": False,
    }
