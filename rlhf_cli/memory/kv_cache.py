"""Computes what generation holds: the keys and values of every token so far, and the logits of the next one.

The numbers are those of transformers' loop if no row ends before its last token. A loop that removes finished rows
(decoding/) holds no more, and less after the first removal, whose time is unknown beforehand.
"""

from __future__ import annotations

from rlhf_cli.memory.architecture import Architecture
from rlhf_cli.memory.precision import Precision

_FLOAT32, _INT64, _INTEGERS = 4, 8, 5
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
    return rows * arch.vocabulary * (precision.compute_bytes + _SAMPLING_COPIES * _FLOAT32)
