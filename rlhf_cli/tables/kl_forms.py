"""List the places where a KL penalty may stand, one row each, with the estimator that is right there."""

from __future__ import annotations

from dataclasses import dataclass

MAX_RELATIVE_ERROR = 0.2
"""Bounds KL / target - 1 in the adaptive controller, on either side (Ziegler et al., arXiv 1909.08593, section 2.2)."""


@dataclass(frozen=True)
class KlForm:
    """Describe one value of `kl.where`. `estimator` names the function of numerics/kl_estimators.py, None where there
    is no KL.

    In the reward k1 is exact for the gradient of the KL; k3 is what TRL's loss holds.
    """

    where: str
    estimator: str | None = None
    in_reward: bool = False
    in_loss: bool = False

    @property
    def needs_reference(self) -> bool:
        """Return whether a reference model has to be there."""
        return self.in_reward or self.in_loss


_ROWS = (
    KlForm("reward", estimator="k1", in_reward=True),
    KlForm("loss", estimator="k3", in_loss=True),
    KlForm("none"),
)

KL_FORMS: dict[str, KlForm] = {row.where: row for row in _ROWS}
"""`kl.where` -> row."""
