"""Check PPO's critic: whether it predicts anything and whether its loss grows."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rlhf_cli.diagnosis.finding import Change, Finding, Fine, Seen, Unseen
from rlhf_cli.diagnosis.logged import Log
from rlhf_cli.diagnosis.run_setup import RunSetup
from rlhf_cli.diagnosis.sustained import (
    ENOUGH,
    ENOUGH_FOR_TREND,
    LATE,
    SURE,
    evidence,
    from_to,
    on_average,
    rounded,
    steps_of,
    too_early,
    too_few,
)
from rlhf_cli.diagnosis.trends import trend

_MOSTLY = 0.8


def explained_variance(log: Log, setup: RunSetup) -> Iterator[Seen]:
    """Yield a finding if the critic is worse than a constant in four of five rounds of the run's second half.

    Every critic is at first; one whose explained variance rises is learning.
    """
    kind = "explained_variance"
    if not setup.has_critic:
        yield Fine(kind, "there is no critic")
        return
    curve = log.curve("ppo/explained_variance")
    if few := too_few(kind, curve, ENOUGH):
        yield few
        return
    late, line = curve.last(LATE), trend(curve)
    share = float((late.values < 0.0).mean())
    if float(np.median(late.values)) >= 0.0 or share < _MOSTLY:
        yield Fine(kind, f"{curve.metric}: {from_to(curve)}")
        return
    if early := too_early(kind, log):
        yield early
        return
    if line is not None and line.rises(SURE) and late.last(LATE).mean > late.first(LATE).mean:
        yield Fine(kind, f"{curve.metric}: {from_to(curve)}; below 0, and rising")
        return
    what = f"the critic foresees less than a constant would: explained variance {on_average(late)}"
    changes = (
        Change("critic.learning_rate=" + _faster(log), "lets it learn faster"),
        Change("critic.warmup_steps=32", "lets it learn alone at first"),
    )
    yield Finding(kind, "", "warning", what, (evidence(curve, from_to(curve)),), *steps_of(late), changes)


def _faster(log: Log) -> str:
    rates = log.curve("critic/learning_rate").values
    return rounded(3 * float(rates.max())) if len(rates) and rates.max() > 0 else "1e-4"


_TWICE = 2.0
_MORE_THAN_RETURNS = 1.2


def value_loss(log: Log, setup: RunSetup) -> Iterator[Seen]:
    """Yield a finding if the critic's loss doubled since its minimum, and outgrew the variance of the returns."""
    kind = "value_loss"
    if not setup.has_critic:
        yield Fine(kind, "there is no critic")
        return
    curve, returns = log.curve("ppo/value_loss"), log.curve("ppo/returns_std")
    if few := too_few(kind, curve, ENOUGH_FOR_TREND):
        yield few
        return
    parts = np.array_split(curve.values, 4)
    lowest = int(np.argmin([part.mean() for part in parts[:3]]))
    grown = float(parts[-1].mean()) / max(float(parts[lowest].mean()), 1e-12)
    line = trend(curve.last(1.0 - lowest / 4))
    if line is None:
        yield Unseen(kind, f"{curve.metric} wanders too much to tell growth from noise")
        return
    spread = np.array_split(returns.values**2, 4) if len(returns) >= ENOUGH else []
    with_returns = float(spread[-1].mean()) / max(float(spread[lowest].mean()), 1e-12) if spread else 1.0
    if grown < _TWICE or not line.rises(SURE) or grown < _MORE_THAN_RETURNS * with_returns:
        yield Fine(kind, f"{curve.metric}: {from_to(curve)}")
        return
    what = f"the critic's loss grows: {grown:.1f} times what it was, the returns' variance {with_returns:.1f} times"
    rates = log.curve("critic/learning_rate").values
    slower = (Change(f"critic.learning_rate={rounded(float(rates.max()) / 3)}", "smaller steps"),) if len(rates) else ()
    seen = (evidence(curve, from_to(curve)), *((evidence(returns, from_to(returns)),) if len(returns) else ()))
    tamer = Change("critic.max_grad_norm=0.5", "no step larger than that")
    yield Finding(kind, "", "warning", what, seen, *steps_of(curve), (*slower, tamer))
