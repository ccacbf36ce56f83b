"""Provide helpers for all checks: minimum numbers of points, curves as evidence, numbers in words."""

from __future__ import annotations

from rlhf_cli.diagnosis.finding import Evidence, Unseen
from rlhf_cli.diagnosis.logged import Curve, Log

ENOUGH = 10
"""Minimum number of points to judge a level: one batch in ten may always be unusual."""
ENOUGH_FOR_TREND = 12
"""Minimum number of points to judge a trend: a line through fewer has too few degrees of freedom. A round of PPO is one
point, so a run of hundreds of steps has tens of points.
"""
LATE = 0.5
"""The final share of a curve used to judge a level: a state that lasts for half of a run is not temporary."""
SURE = 0.005
"""The false-positive probability of a trend test. With about fifteen checks per run, the total is below a tenth."""
_DRAWN = 60


def too_few(kind: str, curve: Curve, enough: int) -> Unseen | None:
    """Return why a curve has too few points to judge, or None if it has enough."""
    if len(curve) >= enough:
        return None
    if not len(curve):
        return Unseen(kind, f"{curve.metric} is not logged")
    return Unseen(kind, f"too few log events with {curve.metric}: {len(curve)}, of {enough} that it takes")


def too_early(kind: str, log: Log, share: float = 0.5) -> Unseen | None:
    """Return why it is too early to judge a lack of change, or None if this share of the training is done."""
    if log.progress >= share:
        return None
    return Unseen(kind, f"it is step {log.step} of {log.max_steps}: too early to say what does not change")


def evidence(curve: Curve, says: str) -> Evidence:
    """Return a curve as evidence, thinned for one terminal line."""
    stride = max(1, len(curve) // _DRAWN)
    steps = tuple(int(step) for step in curve.steps[::stride])
    return Evidence(curve.metric, says, steps, tuple(float(value) for value in curve.values[::stride]))


def rounded(value: float) -> str:
    """Return a number with two significant digits, as one would type it: `0.00033`, `1.5`, `120`."""
    return f"{float(f'{value:.2g}'):g}"


def steps_of(curve: Curve) -> tuple[int, int]:
    """Return the first and the last step of a curve that has points."""
    return int(curve.steps[0]), int(curve.steps[-1])


def from_to(curve: Curve) -> str:
    """Return `0.42 -> 0.9, steps 1 to 120`: the mean of the first and of the last tenth of a curve."""
    first, last = steps_of(curve)
    return f"{curve.first(0.1).mean:.3g} -> {curve.last(0.1).mean:.3g}, steps {first} to {last}"


def on_average(curve: Curve) -> str:
    """Return `0.97 on average over steps 60 to 120`."""
    first, last = steps_of(curve)
    return f"{curve.mean:.3g} on average over steps {first} to {last}"
