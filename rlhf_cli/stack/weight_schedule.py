"""Compute a reward's weight at a given step: a constant, or a schedule between two numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Schedule:
    """A ramp from `start` to `end` over `steps` optimizer steps, or over a `fraction` of training; then constant.

    linear: start + (end - start) p. cosine: start + (end - start)(1 - cos(pi p)) / 2. step: `start` until p = 1, then
    `end`. p is the completed share of the ramp, 0 at the first step.
    """

    start: float
    end: float
    steps: int | None = None
    fraction: float | None = None
    shape: Literal["linear", "cosine", "step"] = "linear"

    def at(self, step: int, max_steps: int) -> float:
        """Return the weight for optimizer step `step` (counted from 0) of `max_steps`."""
        length = self.steps if self.steps is not None else (self.fraction or 1.0) * max_steps
        passed = min(step / length, 1.0) if length > 0 else 1.0
        if self.shape == "step":
            passed = float(passed >= 1.0)
        elif self.shape == "cosine":
            passed = (1 - math.cos(math.pi * passed)) / 2
        return self.start + (self.end - self.start) * passed


Weight = float | Schedule
"""Never normalised: changing one weight leaves the others unchanged."""


def weight_at(weight: Weight, step: int, max_steps: int) -> float:
    """Return `weight` itself, or the schedule's value at that step."""
    return weight.at(step, max_steps) if isinstance(weight, Schedule) else weight
