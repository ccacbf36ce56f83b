"""Logs made of curves that somebody chose, and what is found in them: no trainer, no file, milliseconds."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np

from rlhf_cli.analysis.diagnosis.finding import Finding, PassedCheck, RunSetup
from rlhf_cli.analysis.diagnosis.logged import Log
from rlhf_cli.analysis.diagnosis.run_diagnosis import Diagnosis, look, run_check

GRPO = RunSetup(trainer="grpo", args={"max_completion_length": 32, "learning_rate": 0.001, "num_generations": 8})
PPO = RunSetup(trainer="ppo", has_critic=True, kl_coef=0.05, args={"num_iterations": 4, "learning_rate": 0.001})

Values = Sequence[float | None]


def noisy(start: float, end: float, noise: float, *, n: int = 40, seed: int = 0) -> list[float]:
    """A line from start to end with independent Gaussian noise of a deviation of `noise` on it."""
    values = np.linspace(start, end, n) + noise * np.random.default_rng(seed).standard_normal(n)
    return [float(value) for value in values]


def events_of(curves: Mapping[str, Values], *, every: int = 1) -> list[dict[str, object]]:
    """The log events whose metrics are these curves, at steps `every`, 2 `every`, ..."""
    n = max(len(values) for values in curves.values())
    return [
        {"step": (k + 1) * every, "time_s": float(k)}
        | {name: values[k] for name, values in curves.items() if k < len(values)}
        for k in range(n)
    ]


def seen(curves: Mapping[str, Values], setup: RunSetup = GRPO, *, max_steps: int | None = None, kind: str) -> Diagnosis:
    """What a look for one kind sees in these curves."""
    return look(Log.of(events_of(curves), max_steps), setup, [kind])


def found(
    curves: Mapping[str, Values], setup: RunSetup = GRPO, *, max_steps: int | None = None, kind: str
) -> list[Finding]:
    """What a look for one kind finds in these curves."""
    return list(seen(curves, setup, max_steps=max_steps, kind=kind).findings)


def reward(name: str, *, mean: Values, std: float | Values = 0.5, **others: Values) -> dict[str, Values]:
    """The curves of a component: its raw mean and deviation, and `others` as rewards/NAME/OTHER."""
    deviations = [std] * len(mean) if isinstance(std, int | float) else std
    named = {f"rewards/{name}/mean": mean, f"rewards/{name}/std": deviations}
    return {**named, **{f"rewards/{name}/{other}": values for other, values in others.items()}}


def told(curves: Mapping[str, Values], setup: RunSetup = GRPO, *, max_steps: int | None = None, kind: str) -> str:
    """All that one look sees, as lines: `severity subject: what @ first-last`, evidence, what to type; fine; unseen."""
    lines = []
    for one in run_check(kind, Log.of(events_of(curves), max_steps), setup):
        assert one.kind == kind
        if isinstance(one, Finding):
            lines.append(f"{one.severity} {one.subject}: {one.what} @ {one.first_step}-{one.last_step}")
            lines += [f"  {part.metric}: {part.says}" for part in one.evidence]
            lines += [f"  try {change.words}" for change in one.changes]
        else:
            lines.append(f"fine: {one.says}" if isinstance(one, PassedCheck) else f"unseen: {one.why}")
    return "\n".join(lines)


def verdict(curves: Mapping[str, Values], setup: RunSetup = GRPO, *, max_steps: int | None = None, kind: str) -> str:
    """The first word of what is told: a severity, `fine` or `unseen`."""
    return re.split(r"[ :]", told(curves, setup, max_steps=max_steps, kind=kind))[0]
