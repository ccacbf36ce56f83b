"""Counts the bytes that a forward pass keeps for the backward pass, and the bytes needed only for a moment.

Korthikanti et al. (arXiv 2205.05198, 4.1) count s*b*h*(34 + 5*a*s/h) bytes per layer of a GPT in 2 bytes. This module
counts what transformers 5 keeps in the same way, operation by operation. Attention is torch's `sdpa`, which keeps
queries, keys, values, its output and one number per head instead of scores. RMSNorm keeps its input in float32 and the
normalised one. A gated MLP keeps both branches, the activation of one and their product. Autocast copies an input for
every matrix that reads it. A batch with padding has a mask of shape (rows, 1, tokens, tokens) in the compute dtype;
sdpa creates it anew in every layer and repeats keys and values for each query head.

Packed rows have no padding and each prompt once, but attention goes row by row: a prompt's keys and values are
concatenated with those of each of its rows, every row has its own mask, and the outputs are concatenated again.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from rlhf_cli.memory.architecture import Architecture
from rlhf_cli.memory.precision import Precision

_FLOAT32 = 4


@dataclass(frozen=True)
class Batch:
    """A batch of `rows` rows of `tokens` tokens in one pass; `padded`: the rows differ in length.

    `prompts` is None except for packed rows (packing/packed_rows.py). They start with `prompts` different prompts of
    `prompt_tokens` tokens, stored once each, and the position after a row's last token is not computed.
    """

    rows: int
    tokens: int
    padded: bool = True
    prompts: int | None = None
    prompt_tokens: int = 0

    @property
    def size(self) -> int:
        """Return the number of positions that go through the model."""
        if self.prompts is None:
            return self.rows * self.tokens
        return self.prompts * self._shared + self.rows * self._own

    @property
    def mask_size(self) -> int:
        """Return the number of elements of the attention masks, queries times keys; 0 without masks."""
        if self.prompts is not None:
            return self.rows * self._own * (self._shared + self._own)
        return self.rows * self.tokens**2 if self.padded else 0

    @property
    def joined_size(self) -> int:
        """Return the positions of keys (or of values) that are concatenated for the rows of packed prompts."""
        return self.rows * (self._shared + self._own) if self.prompts is not None else 0

    @property
    def _shared(self) -> int:
        return max(self.prompt_tokens - 1, 0)

    @property
    def _own(self) -> int:
        return self.tokens - self.prompt_tokens


@dataclass(frozen=True)
class Adapter:
    """A LoRA adapter of rank `r` on the matrices named in `targets`; the weights below it are frozen."""

    r: int
    targets: Collection[str]


def kept_bytes(
    arch: Architecture, precision: Precision, batch: Batch, *, adapter: Adapter | None = None, checkpointing: bool
) -> float:
    """Return the bytes that all layers of the body keep of `batch` from the forward pass to the backward pass.

    With gradient checkpointing a layer keeps only its input (arXiv 1604.06174; 2205.05198, 5).
    """
    top = _FLOAT32 * arch.hidden + precision.weight_bytes * arch.hidden * (1 if adapter is not None else 2)
    if checkpointing:
        return batch.size * (arch.layers * arch.hidden * precision.weight_bytes + top)
    return arch.layers * layer_bytes(arch, precision, batch, adapter=adapter) + batch.size * top


def layer_bytes(arch: Architecture, precision: Precision, batch: Batch, *, adapter: Adapter | None = None) -> float:
    """Return the bytes that one layer keeps for its backward pass, without its weights."""
    if arch.family == "gpt2":
        numbers = _gpt2_numbers(arch)
        return batch.size * (numbers * precision.compute_bytes + _softmax(arch)) + _mask(precision, batch)
    compute, weight = precision.compute_bytes, precision.weight_bytes
    h, q = arch.hidden, arch.queries
    keys = q if batch.padded and batch.prompts is None else arch.keys
    a_token = 2.0 * _FLOAT32 * h  # the inputs of the two norms, in float32
    if adapter is None:
        a_token += 2 * weight * h  # the normalised inputs, before the norms' own trained weights
    a_token += compute * h * (_readers("q_proj k_proj v_proj", precision, adapter))
    a_token += compute * h * (_readers("gate_proj up_proj", precision, adapter))
    a_token += compute * (2 * q + 2 * keys) + _softmax(arch)
    if arch.norms_heads:
        a_token += (q + arch.keys) * (_FLOAT32 + (0 if adapter is not None else compute))
    branches = 3 + _readers("down_proj", precision, adapter)
    a_token += compute * branches * arch.ffn
    if adapter is not None:
        a_token += compute * adapter.r * len(adapter.targets)
        if _copies_inputs(precision) and "o_proj" in adapter.targets:
            a_token += compute * q  # peft converts it to float32, and autocast copies that
    if batch.prompts is not None:
        a_token += compute * q  # the concatenated outputs of the segments
    return batch.size * a_token + compute * 2 * q * batch.joined_size + _mask(precision, batch)


def passing_bytes(arch: Architecture, precision: Precision, batch: Batch) -> float:
    """Return the peak bytes of a pass without a gradient: in the MLP, the activation of one branch, the other branch
    and their product, plus the residual stream and two copies of it in float32.
    """
    branches = 3 if arch.gated else 2
    numbers = precision.compute_bytes * (branches * arch.ffn + arch.hidden) + 2 * _FLOAT32 * arch.hidden
    return batch.size * numbers + batch.mask_size


def backward_bytes(arch: Architecture, precision: Precision, batch: Batch) -> float:
    """Return the bytes that the backward pass of a layer needs in addition to what was kept: in the MLP, the gradients
    of both branches and of their product, minus the product itself, which is freed, and two of the residual stream's
    width.
    """
    branches = 2 if arch.gated else 1
    return batch.size * (precision.compute_bytes * branches * arch.ffn + 2 * precision.weight_bytes * arch.hidden)


def _readers(names: str, precision: Precision, adapter: Adapter | None) -> int:
    """Return how often the input of these matrices is kept: under autocast each matrix makes a copy.

    Of frozen matrices, only those with an adapter need their input.
    """
    reading = [name for name in names.split() if adapter is None or name in adapter.targets]
    return len(reading) if _copies_inputs(precision) else min(1, len(reading))


def _copies_inputs(precision: Precision) -> bool:
    return precision.autocast and precision.weight_bytes > precision.compute_bytes


def _gpt2_numbers(arch: Architecture) -> int:
    """Return the numbers per token that a layer of GPT-2 keeps, without dropout: inputs and outputs of the norms, q, k,
    v and the attention output, and five of the MLP's width (its GELU is made of powers and a tanh).
    """
    return 4 * arch.hidden + 4 * arch.hidden + 5 * arch.ffn


def _softmax(arch: Architecture) -> int:
    return _FLOAT32 * arch.heads


def _mask(precision: Precision, batch: Batch) -> float:
    return precision.compute_bytes * batch.mask_size
