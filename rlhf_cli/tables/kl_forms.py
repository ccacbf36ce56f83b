"""List the values of `kl.where`: where the KL divergence from the reference enters, and by which estimator."""

from __future__ import annotations

from dataclasses import dataclass

MAX_RELATIVE_ERROR = 0.2
"""Bound on |KL / target - 1| in the adaptive controller (Ziegler et al., arXiv 1909.08593, section 2.2)."""


@dataclass(frozen=True)
class KlForm:
    """A value of `kl.where`. `estimator` names the function in numerics/ppo_losses.py, None without a KL.

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
