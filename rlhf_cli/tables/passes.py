"""List the ways in which rows go through models and in which completions are generated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

GenerationSetting = Literal["auto", "plain"]
"""`auto`: drop finished rows from the batch where possible. `plain`: use transformers' own loop."""


PassMode = Literal["packed", "trimmed", "plain"]
"""`packed`: the tokens of a micro-batch in one flat row, with each prompt once. `trimmed`: rows sorted by length,
without columns that are all padding. `plain`: as in TRL.
"""

PassSetting = Literal["auto", "packed", "trimmed", "plain"]
"""`auto` is the first of these modes that a model supports."""

MAX_SOFTMAX_BYTES = 256 * 2**20
"""The softmax of a pass, float32 of shape (positions, vocabulary), is kept up to this size unless `passes` is plain.
TRL's own tile with 2,048 positions is as large.
"""


@dataclass(frozen=True)
class Passes:
    """How rows go through models, and why not in a faster mode (None if this is the fastest)."""

    mode: PassMode
    why: str | None = None

    def describe(self) -> str:
        """Return `packed`, or `trimmed: its attention has a sliding window of 4096 tokens`."""
        return self.mode if self.why is None else f"{self.mode}: {self.why}"


@dataclass(frozen=True)
class RowAttention:
    """How packed rows attend: all at once with a GPU's variable-length kernel, or row by row, and why."""

    why_no_varlen: str | None

    def describe(self) -> str:
        """Return `all rows at once (torch's varlen_attn)`, or `a row each (SDPA): it is computed in float32`."""
        why = self.why_no_varlen
        return "all rows at once (torch's varlen_attn)" if why is None else f"a row each (SDPA): {why}"
