"""Compute log-probabilities and entropies in one pass over the head, only where a token is scored.

TRL's head keeps no logits: its backward pass projects a second time. With few positions and a small vocabulary, the
softmax is smaller than TRL's tile. Then it is kept, and the backward pass computes the gradient of the logits from it.

Without Triton, TRL's head projects every position of the batch, including prompts and padding. A hook on the backbone
selects the states on any device, and TRL's own forward does the rest: temperature, soft caps, sharded weights.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput
from trl.trainer import utils as trl_utils

from rlhf_cli.tables.passes import MAX_SOFTMAX_BYTES
from rlhf_cli.temporary_attributes import temporary_attributes

_SEAM = "_ChunkedLogProbFunction"
"""The class whose `apply` TRL's fused forward calls; tests/models/packing/test_one_pass_head.py checks it."""

HeadOutputs = tuple[Tensor, Tensor | None, None, None, None]
"""Log-probabilities and entropies; other outputs of TRL's head are not requested here."""


@contextlib.contextmanager
def one_pass_head(*, has_entropy: bool) -> Iterator[Head]:
    """Make TRL's fused forward use our head if possible in this context; if not `has_entropy`, skip entropies."""
    head = Head(getattr(trl_utils, _SEAM), has_entropy=has_entropy)
    with temporary_attributes(trl_utils, **{_SEAM: head}):
        yield head


class Head:
    """Stands in for TRL's autograd function `chunked`, and leaves to it what does not fit.

    `why_chunked` is the reason why the last call was left to it, None if it was not.
    """

    why_chunked: str | None = None

    def __init__(self, chunked: type[torch.autograd.Function], *, has_entropy: bool) -> None:
        self._chunked, self._has_entropy = chunked, has_entropy

    def apply(self, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, *others: Any) -> HeadOutputs:
        """Return the outputs of TRL's function."""
        temperature, chunk_size, softcap, logit_scale, outputs = others
        if not self._has_entropy:
            outputs = tuple(name for name in outputs if name != "entropy")
        self.why_chunked = why_not_one_pass(hidden, weight)
        if softcap is not None:
            self.why_chunked = f"the model caps its logits at {softcap:g}"
        if self.why_chunked is None and set(outputs) <= {"log_probs", "entropy"}:
            scale = logit_scale / temperature
            keeps = torch.is_grad_enabled() and (hidden.requires_grad or weight.requires_grad)
            given = (hidden, weight, bias, targets, scale, keeps, "entropy" in outputs)
            log_probs, entropy = OnePassLogProbs.apply(*given)  # type: ignore[no-untyped-call]
            return log_probs, entropy, None, None, None
        found: HeadOutputs = self._chunked.apply(
            hidden, weight, bias, targets, temperature, chunk_size, softcap, logit_scale, outputs
        )
        return found


def why_not_one_pass(hidden: Tensor, weight: Tensor) -> str | None:
    """Return why the float32 softmax over (N, H) states and a (V, H) vocabulary is not kept; None if it is.

    A weight under ZeRO-3 is complete only in the forward pass; TRL's head gathers it a second time.
    """
    if hasattr(weight, "ds_status"):
        return "ZeRO-3 shards the head"
    size = hidden.shape[0] * weight.shape[0] * 4
    too_large = f"a softmax of {size / 2**20:.0f} MiB is above the limit of {MAX_SOFTMAX_BYTES // 2**20} MiB"
    return too_large if size > MAX_SOFTMAX_BYTES else None


class OnePassLogProbs(torch.autograd.Function):
    """Log-probabilities (N,) of `targets` (N,) under softmax(scale * (hidden @ weight.T + bias)), and entropies (N,).

    hidden: (N, H), weight: (V, H), bias: (V,) or None. The softmax is computed in float32, the projections in the
    precision of the run. With p the softmax, g and h the gradients of log-probability and entropy H, the gradient of a
    logit is scale * (g * (1[target] - p) - h * p * (log p + H)).
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        scale: float,
        keeps_softmax: bool,
        has_entropy: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """Project once; `keeps_softmax` for a backward pass."""
        ctx.set_materialize_grads(False)
        device = hidden.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype
        logits = hidden.to(dtype) @ weight.to(dtype).t()
        if bias is not None:
            logits += bias.to(dtype)
        logits = logits.float()
        if scale != 1.0:
            logits *= scale
        highest = logits.amax(dim=1, keepdim=True)
        logits -= highest  # log-probabilities are differences, so this shift cancels
        chosen = logits.gather(1, targets.unsqueeze(1)).squeeze(1)
        softmax = logits.exp() if has_entropy else logits.exp_()
        total = softmax.sum(dim=1)
        log_total = total.log()
        entropy = log_total - torch.linalg.vecdot(softmax, logits) / total if has_entropy else None
        if keeps_softmax:
            softmax /= total.unsqueeze(1)
            ctx.save_for_backward(hidden, weight, bias, targets, softmax, entropy)
            ctx.dtype, ctx.scale = dtype, scale
        return chosen - log_total, entropy

    @staticmethod
    def backward(ctx: Any, of_log_probs: Tensor | None, of_entropy: Tensor | None) -> tuple[Tensor | None, ...]:
        """Compute the gradient of the logits from the softmax, which is kept unchanged for a second backward pass."""
        hidden, weight, bias, targets, softmax, entropy = ctx.saved_tensors
        if of_log_probs is None:
            if of_entropy is None:
                return (None,) * 7
            of_log_probs = torch.zeros_like(of_entropy)
        if of_entropy is None:
            gradient = softmax * -of_log_probs.unsqueeze(1)
        else:
            by_token = softmax.log().add_(entropy.unsqueeze(1)).mul_(of_entropy.unsqueeze(1))
            by_token += of_log_probs.unsqueeze(1)
            # Where p is 0, log p is not finite, but p log p is 0.
            gradient = by_token.masked_fill_(softmax == 0, 0.0).mul_(softmax).neg_()
        gradient.scatter_add_(1, targets.unsqueeze(1), of_log_probs.unsqueeze(1))
        if ctx.scale != 1.0:
            gradient *= ctx.scale
        needs_hidden, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        small = gradient.to(ctx.dtype)
        return (
            (small @ weight.to(ctx.dtype)).to(hidden.dtype) if needs_hidden else None,
            (small.t() @ hidden.to(ctx.dtype)).to(weight.dtype) if needs_weight else None,
            gradient.sum(dim=0).to(bias.dtype) if bias is not None and needs_bias else None,
            *(None,) * 4,
        )


@contextlib.contextmanager
def only_states(model: PreTrainedModel, places: Tensor) -> Iterator[None]:
    """Make the backbone of `model` return (1, S, hidden) states in this context, those of `places` (S,).

    model: with a head, not wrapped. places: indices into its flattened (B * L) input.
    """

    def pick(_module: torch.nn.Module, _inputs: tuple[object, ...], output: BaseModelOutput) -> BaseModelOutput:
        states = output.last_hidden_state
        assert states is not None
        output.last_hidden_state = states.reshape(-1, states.shape[-1]).index_select(0, places).unsqueeze(0)
        return output

    hook = model.base_model.register_forward_hook(pick)
    try:
        yield
    finally:
        hook.remove()
