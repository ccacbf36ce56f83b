"""Lists the ways in which rows go through a model: the values of `trainer.passes`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

PassMode = Literal["packed", "trimmed", "plain"]
"""`packed`: the tokens of a micro-batch in one flat row, each prompt once. `trimmed`: rows sorted by length, without
columns that are all padding. `plain`: as TRL does it."""

PassSetting = Literal["auto", "packed", "trimmed", "plain"]
"""`auto` is the first of them that a model can go."""

MAX_SOFTMAX_BYTES = 256 * 2**20
"""Up to here the softmax of a pass, float32 of (places, vocabulary), is kept where rows do not go plain; TRL's own tile
is as large with 2,048 places."""


@dataclass(frozen=True)
class Passes:
    """Hold how rows go through models, and what keeps them from a faster way; None where nothing does."""

    mode: PassMode
    why: str | None = None

    def describe(self) -> str:
        """Return `packed`, or `trimmed: its attention has a sliding window of 4096 tokens`."""
        return self.mode if self.why is None else f"{self.mode}: {self.why}"


@dataclass(frozen=True)
class RowAttention:
    """Hold how packed rows attend: all at once with a GPU's kernel of variable lengths, or a row each, and why not."""

    why_a_row_each: str | None

    def describe(self) -> str:
        """Return `all rows at once (torch's varlen_attn)`, or `a row each (SDPA): it is computed in float32`."""
        why = self.why_a_row_each
        return "all rows at once (torch's varlen_attn)" if why is None else f"a row each (SDPA): {why}"
