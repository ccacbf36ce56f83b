"""Define where the KL divergence from the reference model is penalised, and its current coefficient."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from rlhf_cli.numerics.kl_estimators import AdaptiveKl
from rlhf_cli.tables.kl_forms import KL_FORMS, MAX_RELATIVE_ERROR, KlForm


@dataclass(frozen=True)
class KlPenalty:
    """A KL(policy || reference) penalty: k1 subtracted from every token's reward, or k3 in TRL's loss.

    Never both, which would count it twice. With `target` (nats per completion) and `horizon` (completions), the
    coefficient adapts to the measured divergence; otherwise it is constant.
    """

    where: str = "reward"
    coef: float = 0.05
    target: float | None = None
    horizon: int | None = None

    @property
    def is_used(self) -> bool:
        """Return whether a reference model is needed."""
        return self.form.needs_reference

    @property
    def form(self) -> KlForm:
        """Return the properties of this form of the penalty."""
        return KL_FORMS[self.where]

    @property
    def coef_in_reward(self) -> float:
        """Return the coefficient in the tokens' rewards, 0 if the penalty is in the loss."""
        return self.coef if self.form.in_reward else 0.0

    @property
    def coef_in_loss(self) -> float:
        """Return the coefficient in TRL's loss, 0 if the penalty is in the rewards."""
        return self.coef if self.form.in_loss else 0.0

    def updated(self, kl: float, num_rows: int) -> KlPenalty:
        """Return the penalty after `num_rows` completions with a mean divergence of `kl` nats; NaN: no row counted."""
        if self.target is None or self.horizon is None or math.isnan(kl):
            return self
        controller = AdaptiveKl(self.coef, self.target, self.horizon, MAX_RELATIVE_ERROR)
        return replace(self, coef=controller.updated(kl, num_rows).coef)
