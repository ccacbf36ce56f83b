"""Counts what generation holds: the keys and values of every token so far, and the logits of the next one.

It is what transformers' loop holds, where no row ends before its last token. A loop that rows leave when they have
ended (decoding/) holds no more, and less from the first that leaves on; when that is, nobody knows beforehand.
"""

from __future__ import annotations

from rlhf_cli.memory.architecture import Architecture
from rlhf_cli.memory.precision import Precision

_FLOAT32 = 4
_SAMPLING_COPIES = 4
"""transformers 5 copies the last logits to float32, makes probabilities of them, and multinomial draws a number for
each word and divides by it.
"""


def cache_bytes(arch: Architecture, rows: int, tokens: int, element_bytes: float) -> float:
    """Return the bytes of a cache of `rows` answers of `tokens` tokens, the prompt's among them: a key and a value a
    layer and token (arXiv 2211.05102, 2.1), for `kv_heads` heads alone (arXiv 2305.13245).
    """
    return 2 * arch.layers * arch.keys * tokens * rows * element_bytes


def growth_bytes(arch: Architecture, rows: int, tokens: int, element_bytes: float) -> float:
    """Return what a step of generation needs beside the cache: transformers joins a layer's keys with the new ones into
    another tensor, then its values, and lets go of the old.
    """
    return cache_bytes(arch, rows, tokens, element_bytes) / (2 * arch.layers)


def sampling_bytes(arch: Architecture, precision: Precision, rows: int) -> float:
    """Return the bytes of the logits of the next token of `rows` answers, and of the copies that sampling makes."""
    return rows * arch.vocabulary * (precision.compute_bytes + _SAMPLING_COPIES * _FLOAT32)
