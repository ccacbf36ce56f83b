"""Make logs of chosen curves, and return what a diagnosis finds in them, without a trainer or a file."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np

from rlhf_cli.analysis.diagnosis.logged import Finding, Log, PassedCheck, RunSetup
from rlhf_cli.analysis.diagnosis.run_diagnosis import look, run_check

GRPO = RunSetup(trainer="grpo", args={"max_completion_length": 32, "learning_rate": 0.001, "num_generations": 8})
PPO = RunSetup(
    trainer="ppo", has_critic=True, args={"num_iterations": 4, "learning_rate": 0.001}, values={"kl.coef": 0.05}
)

Values = Sequence[float | None]


def noisy(start: float, end: float, noise: float, *, n: int = 40, seed: int = 0) -> list[float]:
    """Return a line from start to end with independent Gaussian noise of this deviation."""
    values = np.linspace(start, end, n) + noise * np.random.default_rng(seed).standard_normal(n)
    return [float(value) for value in values]


def events_of(curves: Mapping[str, Values], *, every: int = 1) -> list[dict[str, object]]:
    """Return log events with these curves, at steps `every`, 2 `every`, ..."""
    n = max(len(values) for values in curves.values())
    return [
        {"step": (k + 1) * every, "time_s": float(k)}
        | {name: values[k] for name, values in curves.items() if k < len(values)}
        for k in range(n)
    ]


def found(
    curves: Mapping[str, Values], setup: RunSetup = GRPO, *, max_steps: int | None = None, kind: str
) -> list[Finding]:
    """Return the findings of one kind in these curves."""
    return list(look(Log.of(events_of(curves), max_steps), setup, [kind]).findings)


def reward(name: str, *, mean: Values, std: float | Values = 0.5, **others: Values) -> dict[str, Values]:
    """Return the curves of a component: its raw mean and deviation, and `others` as rewards/NAME/OTHER."""
    deviations = [std] * len(mean) if isinstance(std, int | float) else std
    named = {f"rewards/{name}/mean": mean, f"rewards/{name}/std": deviations}
    return {**named, **{f"rewards/{name}/{other}": values for other, values in others.items()}}


def results(
    curves: Mapping[str, Values], setup: RunSetup = GRPO, *, max_steps: int | None = None, kind: str
) -> list[str]:
    """Return what a check makes of these curves: `fine`, `unseen`, or a line per finding.

    A line is `severity subject @ first-last | metrics shown | figures of the headline | words to type`, where
    `trainer.args.` is left out.
    """
    lines = []
    for result in run_check(kind, Log.of(events_of(curves), max_steps), setup):
        assert result.kind == kind
        if isinstance(result, Finding):
            metrics = ", ".join(part.metric for part in result.evidence)
            figures = ", ".join(re.findall(r"-?\d+(?:\.\d+)?%?", result.what))
            typed = ", ".join(change.words.removeprefix("trainer.args.") for change in result.changes)
            head = " ".join(filter(None, (result.severity, result.subject)))
            line = f"{head} @ {result.first_step}-{result.last_step} | {metrics} | {figures} | {typed}"
            lines.append(line.rstrip())
        else:
            lines.append("fine" if isinstance(result, PassedCheck) else "unseen")
    return lines


def verdict(curves: Mapping[str, Values], setup: RunSetup = GRPO, *, max_steps: int | None = None, kind: str) -> str:
    """Return the first word of a check's results: a severity, `fine` or `unseen`; '' for no result."""
    return next((line.split()[0] for line in results(curves, setup, max_steps=max_steps, kind=kind)), "")


def words(curves: Mapping[str, Values], setup: RunSetup = GRPO, *, kind: str) -> list[str]:
    """Return the words to type of all findings."""
    checked = run_check(kind, Log.of(events_of(curves)), setup)
    return [change.words for result in checked if isinstance(result, Finding) for change in result.changes]
