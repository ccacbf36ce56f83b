"""Counts what TRL's fused head needs at a time: log-probabilities tile by tile, and never all logits at once.

TRL 1.16 (kernels/chunked_logprob.py) projects at most 4096 tokens on at most 32768 words of the vocabulary at a time,
in a buffer that has all 32768 columns whatever the vocabulary is. On a GPU a Triton kernel works in that buffer, on the
completion's tokens alone; elsewhere torch's operations make more tiles of it, in float32, for every position. The
backward pass makes the tiles once more, and adds up the gradients of hidden states and head in float32.

Where rows do not go plain and the softmax is small, it is kept instead (packing/one_pass_head.py).
"""

from __future__ import annotations

from rlhf_cli.memory.architecture import Architecture
from rlhf_cli.memory.precision import Precision
from rlhf_cli.tables.pass_modes import MAX_SOFTMAX_BYTES

TILE_TOKENS = 4096
TILE_WORDS = 32768
_FLOAT32 = 4
_FORWARD_TILES = 3
"""Without Triton: the scaled logits, their exponentials, and the product of both that entropy needs."""
_BACKWARD_TILES = 7.25
"""Without Triton: logits unscaled and scaled, log-probabilities, probabilities, the gradient, what is added to it and
its factor, and which word is the target, in a byte.
"""


def forward_bytes(arch: Architecture, precision: Precision, tokens: int, *, on_gpu: bool) -> float:
    """Return the bytes that the head needs at a time for the log-probabilities of `tokens` tokens."""
    return _tiles(arch, precision, tokens, _FORWARD_TILES, on_gpu=on_gpu)


def backward_bytes(arch: Architecture, precision: Precision, tokens: int, *, trains_head: bool, on_gpu: bool) -> float:
    """Return the bytes that the head needs at a time for the gradient of `tokens` log-probabilities.

    `trains_head`: the head's own gradient is among them, once in float32 and once as its weights are.
    """
    head = arch.vocabulary * arch.hidden * (_FLOAT32 + _copy(precision)) if trains_head else 0.0
    hidden = tokens * arch.hidden * (_FLOAT32 + _copy(precision))
    return _tiles(arch, precision, tokens, _BACKWARD_TILES, on_gpu=on_gpu) + head + hidden


def fits_one_pass(arch: Architecture, tokens: int) -> bool:
    """Return whether the softmax over `tokens` tokens is small enough to be kept."""
    return 0 < tokens * arch.vocabulary * _FLOAT32 <= MAX_SOFTMAX_BYTES


def one_pass_forward_bytes(arch: Architecture, precision: Precision, tokens: int, *, has_entropy: bool) -> float:
    """Return the bytes of logits, in whose place the softmax is made; for an entropy it lies beside them, and with it
    the product of both.

    In 2 bytes logits are there once more until float32 is made of them.
    """
    words, narrow = tokens * arch.vocabulary, precision.compute_bytes
    tiles = max(3.0 if has_entropy else 1.0, 1 + narrow / _FLOAT32 if narrow < _FLOAT32 else 1.0)
    return words * _FLOAT32 * tiles + _cast_head(arch, precision)


def one_pass_backward_bytes(
    arch: Architecture, precision: Precision, tokens: int, *, trains_head: bool, entropy_learns: bool
) -> float:
    """Return the bytes that the gradient of `tokens` log-probabilities takes: it is made beside the softmax.

    `entropy_learns`: with it goes a mask of one byte for a moment. The head's gradient, where it is trained, and that
    of the hidden states are made in the bytes of what is computed, and again in those of the weights.
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
    """Return the bytes of a gradient that is made of the one in float32; none where that is already right."""
    return 0.0 if precision.weight_bytes == _FLOAT32 else precision.weight_bytes
