"""Count the bytes of activations, the language-model head and the key-value cache.

Korthikanti et al. (arXiv 2205.05198, 4.1) count s*b*h*(34 + 5*a*s/h) bytes per layer of a GPT in 2 bytes. This module
counts what transformers 5 keeps in the same way, operation by operation. Attention is torch's `sdpa`, which keeps
queries, keys, values, its output and one number per head instead of scores. RMSNorm keeps its input in float32 and the
normalised one. A gated MLP keeps both branches, the activation of one and their product. Autocast copies an input for
every matrix that reads it. A batch with padding has a mask of shape (rows, 1, tokens, tokens) in the compute dtype;
sdpa creates it anew in every layer and repeats keys and values for each query head.

Packed rows have no padding and each prompt once, but attention goes row by row: a prompt's keys and values are
concatenated with those of each of its rows, every row has its own mask, and the outputs are concatenated again.

The numbers are those of transformers' loop if no row ends before its last token. A loop that removes finished rows
(decoding/) holds no more, and less after the first removal, whose time is unknown beforehand.

TRL 1.16 (kernels/chunked_logprob.py) projects at most 4096 tokens on at most 32768 words of the vocabulary at a time,
in a buffer that always has 32768 columns. On a GPU a Triton kernel works in that buffer, on the completion's tokens
only. Elsewhere torch's operations create more tiles in float32, for every position. The backward pass creates the tiles
again, and accumulates the gradients of hidden states and head in float32.

If `passes` is not plain and the softmax is small, it is kept instead (packing/one_pass_head.py).
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.config.trl_args import setting, trainer
from rlhf_cli.plan.memory.shapes import Architecture, Precision
from rlhf_cli.tables.modes import MAX_SOFTMAX_BYTES
from rlhf_cli.tables.trl_trainers import POLICY_LOSSES

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


_CACHE_FLOAT32, _INT64, _INTEGERS = 4, 8, 5
_SAMPLING_COPIES = 4
"""transformers 5 copies the last logits to float32 and computes probabilities; multinomial draws a number for each word
and divides by it.
"""


def cache_bytes(arch: Architecture, rows: int, tokens: int, element_bytes: float) -> float:
    """Return the bytes of a cache of `rows` answers of `tokens` tokens, including the prompt: a key and a value per
    layer and token (arXiv 2211.05102, 2.1), for the `kv_heads` heads only (arXiv 2305.13245).
    """
    return 2 * arch.layers * arch.keys * tokens * rows * element_bytes


def growth_bytes(arch: Architecture, rows: int, tokens: int, element_bytes: float) -> float:
    """Return what a generation step needs beside the cache: transformers concatenates a layer's keys with the new ones
    into another tensor, then its values, and frees the old. Each token has its id, twice while one is appended, its id
    in the answer, its mask and its position.
    """
    return cache_bytes(arch, rows, tokens, element_bytes) / (2 * arch.layers) + _INTEGERS * _INT64 * rows * tokens


def sampling_bytes(arch: Architecture, precision: Precision, rows: int) -> float:
    """Return the bytes of the next-token logits of `rows` answers, and of the copies that sampling makes."""
    return rows * arch.vocabulary * (precision.compute_bytes + _SAMPLING_COPIES * _CACHE_FLOAT32)


TILE_TOKENS = 4096
TILE_WORDS = 32768
_FORWARD_TILES = 3
"""Without Triton: the scaled logits, their exponentials, and the product of both for the entropy."""
_BACKWARD_TILES = 7.25
"""Without Triton: logits unscaled and scaled, log-probabilities, probabilities, the gradient, its addend and factor,
and a byte per element that marks the target word.
"""


def forward_bytes(arch: Architecture, precision: Precision, tokens: int, *, on_gpu: bool) -> float:
    """Return the head's peak bytes for the log-probabilities of `tokens` tokens."""
    return _tiles(arch, precision, tokens, _FORWARD_TILES, on_gpu=on_gpu)


def head_backward_bytes(
    arch: Architecture, precision: Precision, tokens: int, *, trains_head: bool, on_gpu: bool
) -> float:
    """Return the head's peak bytes for the gradient of `tokens` log-probabilities.

    `trains_head`: include the head's own gradient, once in float32 and once in the dtype of its weights.
    """
    head = arch.vocabulary * arch.hidden * (_FLOAT32 + _copy(precision)) if trains_head else 0.0
    hidden = tokens * arch.hidden * (_FLOAT32 + _copy(precision))
    return _tiles(arch, precision, tokens, _BACKWARD_TILES, on_gpu=on_gpu) + head + hidden


def fits_one_pass(arch: Architecture, tokens: int) -> bool:
    """Return whether the softmax over `tokens` tokens is small enough to be kept."""
    return 0 < tokens * arch.vocabulary * _FLOAT32 <= MAX_SOFTMAX_BYTES


def one_pass_forward_bytes(arch: Architecture, precision: Precision, tokens: int, *, has_entropy: bool) -> float:
    """Return the bytes of the logits, which the softmax overwrites. With an entropy, the softmax and the product of
    both are separate tensors.

    In a 2-byte dtype, the logits also exist in that dtype until they are converted to float32.
    """
    words, narrow = tokens * arch.vocabulary, precision.compute_bytes
    tiles = max(3.0 if has_entropy else 1.0, 1 + narrow / _FLOAT32 if narrow < _FLOAT32 else 1.0)
    return words * _FLOAT32 * tiles + _cast_head(arch, precision)


def one_pass_backward_bytes(
    arch: Architecture, precision: Precision, tokens: int, *, trains_head: bool, entropy_learns: bool
) -> float:
    """Return the bytes that the gradient of `tokens` log-probabilities takes beside the softmax.

    `entropy_learns`: adds a temporary mask of one byte per element. The gradients of the head, if it is trained, and of
    the hidden states exist in the compute dtype and again in the dtype of the weights.
    """
    words, narrow = tokens * arch.vocabulary, precision.compute_bytes
    copies = 2 if precision.copies_weights else 1
    gradients = tokens * arch.hidden + (arch.vocabulary * arch.hidden if trains_head else 0)
    multiplied = words * (narrow if narrow < _FLOAT32 else 0.0) + gradients * narrow * copies
    return 2 * words * _FLOAT32 + max(multiplied, words if entropy_learns else 0.0)


def _cast_head(arch: Architecture, precision: Precision) -> float:
    return precision.compute_bytes * arch.vocabulary * arch.hidden if precision.copies_weights else 0.0


def _tiles(arch: Architecture, precision: Precision, tokens: int, tiles: float, *, on_gpu: bool) -> float:
    rows, words = min(tokens, TILE_TOKENS), min(arch.vocabulary, TILE_WORDS)
    casts = precision.compute_bytes * words * arch.hidden if precision.copies_weights else 0.0
    if on_gpu:
        return precision.compute_bytes * rows * TILE_WORDS + casts
    return rows * words * (precision.compute_bytes + _FLOAT32 * tiles) + casts


def _copy(precision: Precision) -> float:
    """Return the bytes per element of a gradient converted from float32; 0 if it stays in float32."""
    return 0.0 if precision.weight_bytes == _FLOAT32 else precision.weight_bytes


def most_prompts(rows: int, group: int) -> int:
    """Return the maximum number of prompts in a slice of `rows` rows of a list of whole groups cut into such slices.

    A slice starts at a multiple of the greatest common divisor of `rows` and `group` within a group, at most `group`
    minus that divisor after the group's start.
    """
    latest = group - math.gcd(rows, group)
    return -(-(latest + rows) // group)


def prompts_learned_from(experiment: Experiment, micro_batch: int, completions: int) -> int:
    """Return the maximum number of prompts in a micro-batch of a round of `completions` in one process.

    TRL shuffles a round. Rows are sorted by prompt again if the micro-batches of an optimizer step are the whole round
    and the loss does not depend on which rows share a micro-batch (trainers/passes/row_passes.py).
    """
    fields, args = trainer(experiment.trainer.trl), experiment.trainer.args
    group = _whole(setting(fields, args, "num_generations"))
    accumulation = _whole(setting(fields, args, "gradient_accumulation_steps"))
    micro_batches = max(1, completions // micro_batch)
    in_round = most_prompts(completions, group) if completions else micro_batch
    is_sorted = micro_batches == 1 or (accumulation % micro_batches == 0 and _may_reorder(experiment))
    if not is_sorted:
        return min(in_round, micro_batch)
    edges = 2 if completions % group else 0  # groups shared with another process
    return min(in_round, micro_batch, most_prompts(micro_batch, group) + edges)


def entropy_learns(experiment: Experiment) -> bool:
    """Return whether the loss has an entropy bonus."""
    fields, args = trainer(experiment.trainer.trl), experiment.trainer.args
    is_adaptive = setting(fields, args, "use_adaptive_entropy") is True
    return is_adaptive or setting(fields, args, "entropy_coef") not in (None, 0, 0.0)


def _may_reorder(experiment: Experiment) -> bool:
    fields, args = trainer(experiment.trainer.trl), experiment.trainer.args
    share = setting(fields, args, "top_entropy_quantile")
    if entropy_learns(experiment) or (isinstance(share, float) and share < 1.0):
        return False
    loss = POLICY_LOSSES.get(str(setting(fields, args, "loss_type")))
    return loss is None or loss.normaliser != "micro-batch"


def _whole(value: object) -> int:
    return value if isinstance(value, int) and value > 0 else 1
