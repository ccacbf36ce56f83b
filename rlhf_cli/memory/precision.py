"""Defines the bytes per stored weight and per computed number, from dtype, precision and quantisation."""

from __future__ import annotations

from dataclasses import dataclass

NF4_BYTES = 0.5 + 1 / 64 + 4 / (64 * 256)
"""A weight in QLoRA: 4 bits, an 8-bit scale per 64 weights, and 32 bits per 256 scales (arXiv 2305.14314, 3)."""
INT8_BYTES = 1.0
"""A weight in LLM.int8() (arXiv 2208.07339), without its scales (one per row of a matrix)."""


@dataclass(frozen=True)
class Precision:
    """Bytes per number. `weight_bytes` is the size of a weight that is not quantised; `autocast` computes matrices in 2
    bytes in any case. `quantised_bytes` is the size of a weight in the body's matrices, None if they are not quantised.
    """

    weight_bytes: float
    autocast: bool = False
    quantised_bytes: float | None = None

    @property
    def compute_bytes(self) -> float:
        """Return the bytes per element of a matrix product."""
        return 2.0 if self.autocast else self.weight_bytes

    @property
    def body_bytes(self) -> float:
        """Return the bytes of a weight in the body's matrices."""
        return self.weight_bytes if self.quantised_bytes is None else self.quantised_bytes

    @property
    def copies_weights(self) -> bool:
        """Return whether autocast keeps a 2-byte copy of the body's matrices until a backward pass ends."""
        return self.autocast and self.quantised_bytes is None and self.weight_bytes > self.compute_bytes
