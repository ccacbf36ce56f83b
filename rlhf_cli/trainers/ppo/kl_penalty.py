"""Say where the divergence from the reference model is punished, and how much by now."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from rlhf_cli.numerics.kl_estimators import AdaptiveKl
from rlhf_cli.tables.kl_forms import KL_FORMS, MAX_RELATIVE_ERROR, KlForm


@dataclass(frozen=True)
class KlPenalty:
    """Estimate KL(policy || reference) by k1 and subtract it from every token's reward, or by k3 in TRL's loss.

    Never both: it would count twice. With `target` (nats a completion) and `horizon` (completions) the coefficient
    follows the divergence that is measured; without them it stays.
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
        """Return what is known of a penalty that stands there."""
        return KL_FORMS[self.where]

    @property
    def coef_in_reward(self) -> float:
        """Return the coefficient in the tokens' rewards, 0 where the penalty is not there."""
        return self.coef if self.form.in_reward else 0.0

    @property
    def coef_in_loss(self) -> float:
        """Return the coefficient in TRL's loss, 0 where the penalty is not there."""
        return self.coef if self.form.in_loss else 0.0

    def updated(self, kl: float, num_rows: int) -> KlPenalty:
        """Return the penalty after `num_rows` completions that diverged by `kl` nats in the mean; NaN: none counted."""
        if self.target is None or self.horizon is None or math.isnan(kl):
            return self
        controller = AdaptiveKl(self.coef, self.target, self.horizon, MAX_RELATIVE_ERROR)
        return replace(self, coef=controller.updated(kl, num_rows).coef)
