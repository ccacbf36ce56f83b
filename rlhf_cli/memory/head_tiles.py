"""Computes the peak memory of TRL's fused head, which computes log-probabilities in tiles, never all logits at once.

TRL 1.16 (kernels/chunked_logprob.py) projects at most 4096 tokens on at most 32768 words of the vocabulary at a time,
in a buffer that always has 32768 columns. On a GPU a Triton kernel works in that buffer, on the completion's tokens
only. Elsewhere torch's operations create more tiles in float32, for every position. The backward pass creates the tiles
again, and accumulates the gradients of hidden states and head in float32.

If `passes` is not plain and the softmax is small, it is kept instead (packing/one_pass_head.py).
"""

from __future__ import annotations

from rlhf_cli.memory.architecture import Architecture
from rlhf_cli.memory.precision import Precision
from rlhf_cli.tables.pass_modes import MAX_SOFTMAX_BYTES

TILE_TOKENS = 4096
TILE_WORDS = 32768
_FLOAT32 = 4
_FORWARD_TILES = 3
"""Without Triton: the scaled logits, their exponentials, and the product of both for the entropy."""
_BACKWARD_TILES = 7.25
"""Without Triton: logits unscaled and scaled, log-probabilities, probabilities, the gradient, its addend and factor,
and a byte per element that marks the target word.
"""


def forward_bytes(arch: Architecture, precision: Precision, tokens: int, *, on_gpu: bool) -> float:
    """Return the head's peak bytes for the log-probabilities of `tokens` tokens."""
    return _tiles(arch, precision, tokens, _FORWARD_TILES, on_gpu=on_gpu)


def backward_bytes(arch: Architecture, precision: Precision, tokens: int, *, trains_head: bool, on_gpu: bool) -> float:
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
