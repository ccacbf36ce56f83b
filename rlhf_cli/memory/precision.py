"""Says in how many bytes weights lie and numbers are computed: both follow from dtype, precision and quantisation."""

from __future__ import annotations

from dataclasses import dataclass

NF4_BYTES = 0.5 + 1 / 64 + 4 / (64 * 256)
"""A weight of QLoRA: 4 bits, a scale of 8 bits for 64 of them, and 32 bits for 256 scales (arXiv 2305.14314, 3)."""
INT8_BYTES = 1.0
"""A weight of LLM.int8() (arXiv 2208.07339); its scales, one a row of a matrix, are left out."""


@dataclass(frozen=True)
class Precision:
    """`weight_bytes` is what a weight takes that is not quantised; `autocast` computes matrices in 2 bytes whatever
    that is. `quantised_bytes` is what a weight of the body's matrices takes, None where they are as the others.
    """

    weight_bytes: float
    autocast: bool = False
    quantised_bytes: float | None = None

    @property
    def compute_bytes(self) -> float:
        """Return the bytes of what a matrix multiplication gives."""
        return 2.0 if self.autocast else self.weight_bytes

    @property
    def body_bytes(self) -> float:
        """Return the bytes of a weight in the body's matrices."""
        return self.weight_bytes if self.quantised_bytes is None else self.quantised_bytes

    @property
    def copies_weights(self) -> bool:
        """Return whether autocast keeps a copy of the body's matrices in 2 bytes until a backward pass is over."""
        return self.autocast and self.quantised_bytes is None and self.weight_bytes > self.compute_bytes
