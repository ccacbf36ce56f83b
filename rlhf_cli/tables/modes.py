"""List modes: generation, passes, KL forms, truncation policies.

The valid values and the rules about them derive from this table. A new truncation policy needs a row here, a function
of the same name in rewards/stack/truncation.py and a file in conf/truncation/.
"""

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


MAX_RELATIVE_ERROR = 0.2
"""Bound on |KL / target - 1| in the adaptive controller (Ziegler et al., arXiv 1909.08593, section 2.2)."""


@dataclass(frozen=True)
class KlForm:
    """A value of `kl.where`. `estimator` names the function in numerics/kl_estimators.py, None without a KL.

    In the reward, k1 is exact for the gradient of the KL; TRL's loss uses k3.
    """

    where: str
    estimator: str | None = None
    in_reward: bool = False
    in_loss: bool = False

    @property
    def needs_reference(self) -> bool:
        """Return whether a reference model is required."""
        return self.in_reward or self.in_loss


_ROWS = (
    KlForm("reward", estimator="k1", in_reward=True),
    KlForm("loss", estimator="k3", in_loss=True),
    KlForm("none"),
)

KL_FORMS: dict[str, KlForm] = {row.where: row for row in _ROWS}
"""`kl.where` -> row."""


@dataclass(frozen=True)
class TruncationRow:
    """A policy. `reads` are the keys of the section `truncation` that it uses.

    `modes` are the values of `truncation.mode`, the first is the default. `mode_if_dense` is the default if every
    reward is dense, None if it is the same. `needs_critic`: only a trainer with a critic supports it. `needs_limit`: it
    requires a maximal completion length.
    """

    name: str
    reads: tuple[str, ...] = ()
    modes: tuple[str, ...] = ()
    mode_if_dense: str | None = None
    needs_critic: bool = False
    needs_limit: bool = False


_TRUNCATION_ROWS = (
    TruncationRow("none"),
    TruncationRow("eos_penalty", reads=("penalty", "mode"), modes=("subtract", "replace")),
    TruncationRow("bootstrap", reads=("mode",), modes=("replace", "add"), mode_if_dense="add", needs_critic=True),
    TruncationRow("exclude"),
    TruncationRow("soft_overlong", reads=("penalty", "cache"), needs_limit=True),
)

TRUNCATION_POLICIES: dict[str, TruncationRow] = {row.name: row for row in _TRUNCATION_ROWS}
"""Name -> row, in the order of listings."""
