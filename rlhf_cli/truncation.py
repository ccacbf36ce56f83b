"""Decide what a completion is worth that a limit cut off: one class per policy, the same for every trainer.

A completion that ends in an end-of-sequence token is *terminated*; one cut by the length limit is *truncated*, and so
is one with another ending that `truncation.also` names. The two are never merged into one `done` flag: a terminated
answer is worth what it earned, while a truncated one might have continued. A policy acts on the row's total, in reward
units.

To add a policy, write a class here and list it in `POLICIES`: `check`, the panel, the audit, `whatif` and the trainers
ask the class. This module does not import torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from torch import Tensor

COMPONENT = "truncation"
"""Name of the truncation policy's component among the rewards."""


class Ending(StrEnum):
    """How a rollout ended: by itself, at the length limit, at the limit of turns, or after a call that failed."""

    FINISHED = "finished"
    LENGTH = "length"
    TURNS = "turns"
    TOOL_ERROR = "tool_error"
    TIMEOUT = "timeout"


ENDINGS = tuple(Ending)
"""Every ending; `Endings.kinds` holds places here."""


@dataclass(frozen=True)
class Endings:
    """How the rows of all ranks ended: `is_truncated` (N,) bool, `lengths` (N,) and `limit` in tokens.

    `kinds` (N,) are places in ENDINGS, None if only truncation is known. Without a limit, the model's own context
    window truncates.
    """

    is_truncated: Tensor
    lengths: Tensor
    limit: int | None
    kinds: Tensor | None = None

    def at(self, ending: Ending) -> Tensor:
        """Return (N,) bool, True = the row ended so; without `kinds`, truncated rows ended at the length limit."""
        if self.kinds is None:
            return self.is_truncated & (ending is Ending.LENGTH)
        return self.kinds == ENDINGS.index(ending)


@dataclass(frozen=True)
class TruncationPolicy:
    """The policy `none`, and the base of all others: a truncated row counts as if it had terminated.

    `keys` are the keys of the section `truncation` that the policy reads; `modes` are the values of `mode`, the default
    first. The fields are the values of these keys.
    """

    name: ClassVar[str] = "none"
    keys: ClassVar[tuple[str, ...]] = ()
    modes: ClassVar[tuple[str, ...]] = ()
    changes_total: ClassVar[bool] = False
    """Whether a component named `truncation` is part of the sum."""
    excludes: ClassVar[bool] = False
    """Whether a truncated row counts nowhere."""
    needs_critic: ClassVar[bool] = False
    """Whether the return of a truncated row includes the critic's value of its last state."""
    reads_lengths: ClassVar[bool] = False
    """Whether the policy needs each row's length in tokens, and a limit."""

    penalty: float = 1.0
    mode: str | None = None
    cache: int | None = None
    also: tuple[str, ...] = ()

    def truncates(self, ending: str) -> bool:
        """Return whether a row that ended so counts as truncated."""
        return ending == Ending.LENGTH or ending in self.also

    @classmethod
    def default_mode(cls, *, is_dense: bool) -> str | None:
        """Return the mode if the user chose none; `is_dense` says that every reward with a weight is dense."""
        return next(iter(cls.modes), None)

    @property
    def replaces(self) -> bool:
        """Return whether a penalty, or the critic's value, replaces the rewards of a truncated row."""
        return self.mode == "replace"

    @property
    def in_words(self) -> str:
        """Return the policy with its mode and its penalty, as the start panel shows it."""
        mode = self.mode or next(iter(self.modes), None)
        size = f" {self.penalty:g}" if "penalty" in self.keys else ""
        return self.name + (f", {mode}" if mode is not None else "") + size

    def added(self, totals: Tensor, endings: Endings) -> Tensor:
        """Return (N,), what the policy adds to each of the totals (N,)."""
        return totals.new_zeros(totals.shape)

    def leaves_out(self, endings: Endings) -> Tensor | None:
        """Return (N,) bool, True = the row counts nowhere; None if the policy excludes no rows."""
        return endings.is_truncated if self.excludes else None

    def replaced(self, endings: Endings) -> Tensor | None:
        """Return (N,) bool, True = a penalty replaces the row's rewards; None if the policy never does that."""
        return endings.is_truncated if self.replaces and self.changes_total else None

    def goes_on(self, endings: Endings) -> Tensor:
        """Return (N,) bool, True = the row's return includes the critic's value of its last state."""
        return endings.is_truncated & self.needs_critic


class EosPenalty(TruncationPolicy):
    """Subtract a penalty from a truncated row, or replace its total by -penalty (Ziegler et al., arXiv 1909.08593)."""

    name = "eos_penalty"
    keys = ("penalty", "mode", "also")
    modes = ("subtract", "replace")
    changes_total = True

    def added(self, totals: Tensor, endings: Endings) -> Tensor:
        """Return -penalty for a truncated row, less the total that it replaces; 0 for all other rows."""
        penalty = totals.new_full(totals.shape, -self.penalty)
        if self.replaces:
            penalty = penalty - totals.nan_to_num(0.0)
        return penalty.where(endings.is_truncated, 0.0)


class Bootstrap(TruncationPolicy):
    """Count the critic's value of the state after the last token (Pardo et al., arXiv 1712.00378).

    `add` adds it to the rewards, for rewards that come token by token. `replace` replaces the score of the whole
    answer, which the values would otherwise count repeatedly.
    """

    name = "bootstrap"
    keys = ("mode", "also")
    modes = ("replace", "add")
    needs_critic = True
    ADDS_TO_PLAIN: ClassVar[str] = (
        "truncation.mode=add counts the critic's value beside a score of the whole answer ({}): a truncated answer"
        " earns twice, and the policy learns never to end; truncation.mode=replace (docs/how-to/ppo.md)"
    )
    """Warning for `add` if a reward is not dense; takes the names of such rewards."""
    REPLACES_DENSE: ClassVar[str] = (
        "truncation.mode=replace removes the reward of a truncated row's last token, although every reward is dense"
        " and the token has earned it; truncation.mode=add (docs/how-to/ppo.md)"
    )
    """Warning for `replace` if every reward is dense."""

    @classmethod
    def default_mode(cls, *, is_dense: bool) -> str | None:
        """Return `add` if every reward with a weight is dense, else `replace`."""
        return "add" if is_dense else "replace"


class Exclude(TruncationPolicy):
    """Give a truncated row no gradient and no place in any mean (DAPO, arXiv 2503.14476, section 3.4)."""

    name = "exclude"
    keys = ("also",)
    excludes = True


class SoftOverlong(TruncationPolicy):
    """Subtract a penalty that grows over the last tokens before the limit (DAPO, arXiv 2503.14476, equation 13)."""

    name = "soft_overlong"
    keys = ("penalty", "cache", "also")
    changes_total = True
    reads_lengths = True

    def added(self, totals: Tensor, endings: Endings) -> Tensor:
        """Return a ramp from 0 to -penalty over the last `cache` tokens, whether or not the row is truncated.

            0                                          where length <= limit - cache
            penalty (limit - cache - length) / cache   where limit - cache < length <= limit

        A row that is longer, or was truncated otherwise than by its length, gets -penalty.
        """
        assert endings.limit is not None, "check refuses a ramp without a limit"
        cache = self.cache or max(1, endings.limit // 5)
        ramp = ((endings.limit - cache - endings.lengths) / cache).clamp(-1.0, 0.0)
        return self.penalty * ramp.masked_fill(endings.is_truncated & ~endings.at(Ending.LENGTH), -1.0)


POLICIES: dict[str, type[TruncationPolicy]] = {
    policy.name: policy for policy in (TruncationPolicy, EosPenalty, Bootstrap, Exclude, SoftOverlong)
}
"""Every policy by its name."""
MODES = tuple(sorted({mode for policy in POLICIES.values() for mode in policy.modes}))
"""Every value of `truncation.mode`."""


def policy_named(name: str) -> type[TruncationPolicy]:
    """Return the policy of a stored run; one that this version does not know counts as `none`."""
    return POLICIES.get(name, TruncationPolicy)
