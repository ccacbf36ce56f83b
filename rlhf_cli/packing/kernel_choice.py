"""Decide whether one kernel attends in all segments of a flat batch, or transformers' function in each."""

from __future__ import annotations

import functools

import torch
from peft import PeftModel
from transformers import PreTrainedModel

from rlhf_cli.packing.kernel_trial import why_wrong
from rlhf_cli.packing.varlen_kernel import Heads

_HALF = (torch.bfloat16, torch.float16)
_CAPABILITY = (8, 0)
_LARGEST_HEAD, _STEP_OF_HEADS = 256, 8
"""The limits of `mha_varlen_fwd` in torch's flash_api.cpp."""

_distrusted: list[str] = []
"""Problems that trials with a model revealed. They apply to the process, like the kernel."""


def heads_of_model(model: PreTrainedModel | PeftModel, device: torch.device, dtype: torch.dtype) -> Heads:
    """Return the attention settings of a packable model from its configuration."""
    config = model.config.get_text_config()
    num_heads = config.num_attention_heads
    return Heads(
        device=device,
        dtype=dtype,
        num_heads=num_heads,
        num_key_heads=getattr(config, "num_key_value_heads", None) or num_heads,
        size=getattr(config, "head_dim", None) or config.hidden_size // num_heads,
    )


def why_a_row_each(heads: Heads) -> str | None:
    """Return why attention cannot be computed in all segments at once, in words; None if it can.

    The kernel is tried the first time that a device supports it.
    """
    return _distrusted[0] if _distrusted else _why_never(heads)


def distrust(why: str) -> None:
    """Make all attention of this process run once per row, from the next pass on."""
    _distrusted.append(why)


@functools.cache
def _why_never(heads: Heads) -> str | None:
    if heads.device.type != "cuda":
        return f"the device is {heads.device.type}"
    if heads.dtype not in _HALF:
        return f"it is computed in {str(heads.dtype).removeprefix('torch.')}"
    capability = torch.cuda.get_device_capability(heads.device)
    if capability < _CAPABILITY:
        return f"the GPU is of compute capability {'.'.join(map(str, capability))}, and the kernels want 8.0"
    if heads.size > _LARGEST_HEAD or heads.size % _STEP_OF_HEADS:
        return f"its heads are of size {heads.size}, and the kernels want multiples of 8 up to 256"
    wrong = why_wrong(heads)
    return None if wrong is None else f"torch's varlen_attn was tried, and {wrong}"
