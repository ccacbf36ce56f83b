"""What every look at a log needs: how many points are enough, curves as evidence, numbers as words."""

from __future__ import annotations

from rlhf_cli.diagnosis.finding import Evidence, Unseen
from rlhf_cli.diagnosis.logged import Curve, Log

ENOUGH = 10
"""So many points before anything is said of a level: one batch in ten may always be an odd one."""
ENOUGH_FOR_TREND = 12
"""So many before anything is said of a trend: a line through fewer has too few degrees of freedom. A round of PPO is a
point, and there are tens of them where there are hundreds of steps."""
LATE = 0.5
"""The share of a curve, its end, by which a level is judged: what holds over half of a run is no passing state."""
SURE = 0.005
"""The probability of a trend by mistake. A run is looked at for some fifteen things: together below a tenth."""
_DRAWN = 60


def too_few(kind: str, curve: Curve, enough: int) -> Unseen | None:
    """Return why nothing can be said of a curve, None where it has enough points."""
    if len(curve) >= enough:
        return None
    if not len(curve):
        return Unseen(kind, f"{curve.metric} is not logged")
    return Unseen(kind, f"too few log events with {curve.metric}: {len(curve)}, of {enough} that it takes")


def too_early(kind: str, log: Log, share: float = 0.5) -> Unseen | None:
    """Return why what never happened may happen yet, None where so large a share of the training is done."""
    if log.progress >= share:
        return None
    return Unseen(kind, f"it is step {log.step} of {log.max_steps}: too early to say what does not change")


def evidence(curve: Curve, says: str) -> Evidence:
    """Return a curve as evidence, thinned to what a line of a terminal shows."""
    stride = max(1, len(curve) // _DRAWN)
    steps = tuple(int(step) for step in curve.steps[::stride])
    return Evidence(curve.metric, says, steps, tuple(float(value) for value in curve.values[::stride]))


def rounded(value: float) -> str:
    """Return a number with two digits that count, as somebody would type it: `0.00033`, `1.5`, `120`."""
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
