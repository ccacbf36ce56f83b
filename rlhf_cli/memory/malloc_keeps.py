"""Estimates the memory that glibc's malloc, with default settings, retains beside tensors when training on a CPU.

Memory freed below a block in use stays with the process. mallopt(3): M_MMAP_THRESHOLD, initially 128 KiB, grows to the
size of the largest freed block, up to 32 MiB. Smaller blocks come from one heap; larger ones have their own mapping,
which is returned at once. So the process retains the gaps between what the layers keep, until the backward pass has
gone through them. It also retains the gaps that the logit tiles leave, and the gradients, which are freed after every
step. The optimizer's state, created after the first passes, fills some of the gaps; an adapter's state is too small for
that.

These amounts are measured, not derived: docs/memory.md has the runs.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from rlhf_cli.memory.activations import Batch
from rlhf_cli.memory.architecture import Architecture
from rlhf_cli.memory.head_tiles import TILE_TOKENS, TILE_WORDS
from rlhf_cli.memory.precision import Precision

_FLOAT32 = 4
_LARGEST_IN_HEAP = 32 * 2**20
"""DEFAULT_MMAP_THRESHOLD_MAX on systems where a long has 8 bytes."""
_GIVES_BACK_BELOW = 2 * 2**20
_OF_ACTIVATIONS, _OF_LOGITS, _OF_GRADIENTS = 0.3, 0.75, 0.75
"""Retained memory as a fraction of what the layers keep, of the head's tiles, and of all gradients."""
_OF_ACTIVATIONS_WITH_ADAPTER = 0.8
_MLP_TENSORS = 4
"""Tensors of the MLP's width per layer: both branches, the activation of one, their product."""


def malloc_keeps(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether processes here use glibc's malloc without a setting that makes it return freed memory."""
    try:
        is_glibc = os.confstr("CS_GNU_LIBC_VERSION") is not None
    except (ValueError, OSError):
        return False
    told = environment.get("MALLOC_MMAP_THRESHOLD_", "")
    is_told = told.isdigit() and int(told) <= _GIVES_BACK_BELOW
    return is_glibc and not is_told and not environment.get("LD_PRELOAD")


def kept_by_malloc(
    arch: Architecture,
    precision: Precision,
    batch: Batch,
    *,
    activations: float,
    logits: float,
    scored: int,
    gradients: float = 0.0,
    trains_adapter: bool = False,
) -> float:
    """Return the bytes that are retained outside of tensors when the backward pass of `batch` begins.

    `activations` is what the layers keep and `logits` what the head's tiles of `scored` tokens take, in bytes.
    `gradients` are those of all trained weights. `trains_adapter`: the other weights are frozen.
    """
    of_mlp = min(activations, arch.layers * batch.size * _MLP_TENSORS * arch.ffn * precision.compute_bytes)
    by_width = {arch.ffn: of_mlp, arch.hidden: activations - of_mlp}
    in_heap = sum(
        size for width, size in by_width.items() if batch.size * width * precision.compute_bytes < _LARGEST_IN_HEAP
    )
    tile = _FLOAT32 * min(scored, TILE_TOKENS) * min(arch.vocabulary, TILE_WORDS)
    share = _OF_ACTIVATIONS_WITH_ADAPTER if trains_adapter else _OF_ACTIVATIONS
    matrix = arch.hidden * arch.ffn * precision.weight_bytes
    of_gradients = _OF_GRADIENTS * gradients if matrix < _LARGEST_IN_HEAP else 0.0
    return of_gradients + share * in_heap + (_OF_LOGITS * logits if tile < _LARGEST_IN_HEAP else 0.0)
