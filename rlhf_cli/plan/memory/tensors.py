"""Count the bytes of what a pass through a model needs: activations, logits, the key-value cache.

The activations of a layer are counted operation by operation, as in Korthikanti et al. (arXiv 2205.05198, 4.1), for the
layers of transformers 5. Attention is torch's `sdpa`: it keeps queries, keys, values and its output, no scores. A batch
with padding has a mask of shape (rows, 1, tokens, tokens) in every layer, and copies the keys for every query head.

The result is compared with the tensors that autograd saves (tests/plan/memory/test_tensors.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from rlhf_cli.plan.memory.shapes import Architecture, LoadedModel
from rlhf_cli.tables.passes import MAX_SOFTMAX_BYTES

_FLOAT32 = 4


@dataclass(frozen=True)
class Batch:
    """A batch of `rows` rows of `tokens` tokens in one pass; `padded`: the rows differ in length.

    `prompts` is None except for packed rows (models/packing). They start with `prompts` different prompts of
    `prompt_tokens` tokens, which are stored once each.
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
        return self.prompts * self.prompt_tokens + self.rows * (self.tokens - self.prompt_tokens)

    @property
    def mask_size(self) -> int:
        """Return the number of elements of the attention masks, queries times keys; 0 without masks."""
        if self.prompts is not None:
            return self.rows * (self.tokens - self.prompt_tokens) * self.tokens
        return self.rows * self.tokens**2 if self.padded else 0


def most_prompts(rows: int, group: int) -> int:
    """Return the maximum number of prompts in a slice of `rows` rows of a list of whole groups cut into such slices.

    A slice starts at most `group - gcd(rows, group)` rows after the start of a group.
    """
    return math.ceil((group - math.gcd(rows, group) + rows) / group)


def kept_bytes(model: LoadedModel, batch: Batch, *, checkpointing: bool) -> float:
    """Return the bytes that all layers keep of `batch` from the forward pass to the backward pass.

    With gradient checkpointing a layer keeps only its input (arXiv 1604.06174; 2205.05198, 5).
    """
    arch, weight = model.arch, model.weight_bytes
    top = batch.size * (_FLOAT32 + 2 * weight) * arch.hidden  # around the last norm
    if checkpointing:
        return batch.size * arch.layers * arch.hidden * weight + top
    return arch.layers * layer_bytes(model, batch) + top


def layer_bytes(model: LoadedModel, batch: Batch) -> float:
    """Return the bytes that one layer keeps for its backward pass, without its weights.

    An adapter is assumed on every matrix.
    """
    arch, weight, compute = model.arch, model.weight_bytes, model.compute_bytes
    h, q, k = arch.hidden, arch.queries, arch.keys
    inputs = 5 if model.casts else 2  # of q, k, v and of gate, up: autocast makes a copy for each of them
    a_token = 2 * _FLOAT32 * h + inputs * compute * h  # norms keep their inputs in float32
    a_token += compute * (2 * q + 2 * (q if batch.padded and batch.prompts is None else k))
    a_token += compute * 4 * arch.ffn  # both branches, the activation of one, the product
    if not model.lora_rank:
        a_token += 2 * weight * h  # the normalised inputs, for the gradients of the norms
    if arch.family == "qwen3":
        a_token += (q + k) * (_FLOAT32 + (compute if not model.lora_rank else 0))  # queries and keys are normalised
    joined = 0.0
    if batch.prompts is not None:  # keys and values of prompt and answer are joined for each row, and the outputs
        a_token += compute * q
        joined = compute * 2 * q * batch.rows * batch.tokens
    return batch.size * a_token + joined + compute * batch.mask_size


def passing_bytes(model: LoadedModel, batch: Batch) -> float:
    """Return the peak bytes of a pass without a gradient: three tensors of the MLP's width, the residual stream, and
    two copies of it in float32.
    """
    arch = model.arch
    return batch.size * (model.compute_bytes * (3 * arch.ffn + arch.hidden) + 2 * _FLOAT32 * arch.hidden)


def backward_bytes(model: LoadedModel, batch: Batch, *, checkpointing: bool) -> float:
    """Return the bytes that the backward pass of one layer needs beside what was kept: two gradients of the MLP's width
    and two of the residual stream's; with gradient checkpointing also what the layer would have kept.
    """
    arch = model.arch
    gradients = batch.size * 2 * (model.compute_bytes * arch.ffn + model.weight_bytes * arch.hidden)
    return gradients + (layer_bytes(model, batch) if checkpointing else 0.0)


def cache_bytes(arch: Architecture, rows: int, tokens: int, number_bytes: float) -> float:
    """Return the bytes of the key-value cache of `rows` rows of `tokens` tokens: a key and a value per layer and token
    (arXiv 2211.05102, 2.1), for the key heads only (arXiv 2305.13245).
    """
    return 2 * arch.layers * arch.keys * tokens * rows * number_bytes


_SAMPLING_COPIES = 4


def sampling_bytes(arch: Architecture, rows: int, number_bytes: float) -> float:
    """Return the bytes of the next token's logits of `rows` rows and of the float32 copies that sampling makes."""
    return rows * arch.vocabulary * (number_bytes + _SAMPLING_COPIES * _FLOAT32)


_TILE_TOKENS, _TILE_WORDS = 4096, 32768
_CPU_TILES_FORWARD, _CPU_TILES_BACKWARD = 4, 8.25


def logits_bytes(model: LoadedModel, tokens: int, *, learns: bool, on_gpu: bool, may_keep: bool) -> float:
    """Return the peak bytes of the head for the log-probabilities of `tokens` tokens, with their gradient if `learns`.

    `may_keep`: a small float32 softmax is kept (models/packing), with two more tensors of its size if `learns`.
    Otherwise TRL 1.16 (kernels/chunked_logprob.py) computes a tile of at most 4096 tokens x 32768 words at a time: one
    tile in a GPU's kernel, several in float32 on a CPU.
    """
    arch = model.arch
    softmax = _FLOAT32 * tokens * arch.vocabulary
    if may_keep and softmax <= MAX_SOFTMAX_BYTES:
        size: float = softmax * (3 if learns else 1)
    elif on_gpu:
        size = model.compute_bytes * min(tokens, _TILE_TOKENS) * _TILE_WORDS
    else:
        tile = _FLOAT32 * min(tokens, _TILE_TOKENS) * min(arch.vocabulary, _TILE_WORDS)
        size = tile * (_CPU_TILES_BACKWARD if learns else _CPU_TILES_FORWARD)
    if learns and not model.lora_rank:
        size += _FLOAT32 * arch.vocabulary * arch.hidden  # the head's own gradient
    return size
