"""Defines the section `truncation`: what a completion is worth that the length limit cut."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

from pydantic import Field, field_validator

from rlhf_cli.config.schema.section import Section
from rlhf_cli.tables.truncation_policies import TRUNCATION_POLICIES, TruncationRow

if TYPE_CHECKING:
    PolicyName: TypeAlias = str
    Mode: TypeAlias = str
else:  # the words come from the table
    PolicyName = Literal[tuple(TRUNCATION_POLICIES)]
    Mode = Literal[tuple(sorted({mode for row in TRUNCATION_POLICIES.values() for mode in row.modes}))]


class Truncation(Section):
    """The policy that says what a completion is worth that the length limit cut, whichever trainer runs.

    `policy` is none, eos_penalty, bootstrap, exclude or soft_overlong. `penalty` is a size (0 or more), read by
    `eos_penalty` and `soft_overlong`, `cache` (tokens; null: a fifth of max_completion_length) by `soft_overlong`.
    `mode` is `subtract` or `replace` for `eos_penalty`, `add` or `replace` for `bootstrap`: it decides whether what the
    cut completion had earned still counts beside it. Null is for the policy's default: `subtract`, and for `bootstrap`
    the one that the rewards want, which is `add` where all are dense and `replace` where any judges the whole answer.
    """

    policy: PolicyName = "none"
    penalty: float = 1.0
    mode: Mode | None = None
    cache: int | None = Field(default=None, gt=0)

    @field_validator("penalty")
    @classmethod
    def _is_a_size(cls, penalty: float) -> float:
        if penalty < 0:
            raise ValueError("0 or more: it is subtracted from the reward")
        return penalty

    @property
    def row(self) -> TruncationRow:
        """Return what is known of the policy."""
        return TRUNCATION_POLICIES[self.policy]

    @property
    def replaces(self) -> bool:
        """Return whether what the cut completion had earned is left out."""
        return self.mode == "replace"
