"""Define a finding and what a diagnosis knows of a run beside its log."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from rlhf_cli.text.json_values import JsonTree, section

Severity = Literal["serious", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("serious", "warning", "note")
"""The severities, worst first. serious: the run does not achieve its purpose. warning: it costs the run something, or
soon will. note: true and worth a thought, but not shown during training.
"""


@dataclass(frozen=True)
class Evidence:
    """A metric that supports a finding: its curve, and a description with numbers and steps."""

    metric: str
    says: str
    steps: tuple[int, ...] = ()
    values: tuple[float, ...] = ()


@dataclass(frozen=True)
class Fix:
    """An override to type, such as `rewards.brevity.weight=0`, and its effect."""

    words: str
    reason: str


@dataclass(frozen=True)
class Finding:
    """A present or imminent problem, observed from `first_step` to `last_step`.

    `kind` is one of tables/metrics.py; `subject` is the reward or pair concerned if there may be several, else ''.
    """

    kind: str
    subject: str
    severity: Severity
    what: str
    evidence: tuple[Evidence, ...]
    first_step: int
    last_step: int
    changes: tuple[Fix, ...] = ()


@dataclass(frozen=True)
class PassedCheck:
    """A check that passed; `says` has the numbers."""

    kind: str
    says: str


@dataclass(frozen=True)
class SkippedCheck:
    """A check that was impossible, and why: a metric that is not logged, too few steps, too much noise."""

    kind: str
    why: str


CheckResult = Finding | PassedCheck | SkippedCheck


_DEFAULT_LIMIT = 256
"""TRL's default of max_completion_length."""


@dataclass(frozen=True)
class RunSetup:
    """The configuration of a run. `gated` maps a reward to those of its gates; `args` are TRL's arguments as given."""

    trainer: str = ""
    has_critic: bool = False
    gated: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    args: JsonTree = field(default_factory=dict)
    rewards: Mapping[str, JsonTree] = field(default_factory=dict)
    truncation: str = "none"
    kl_coef: float | None = None
    may_use_vllm: bool = False
    folder: str = "RUN"

    @classmethod
    def of(cls, config: JsonTree, folder: str = "RUN") -> RunSetup:
        """Return the setup of the run in `folder`, by its configuration; missing or malformed entries get defaults."""
        rewards = {name: entry for name, entry in section(config, "rewards").items() if isinstance(entry, dict)}
        trainer = section(config, "trainer")
        coefficient = section(config, "kl").get("coef")
        launch = section(config, "launch")
        return cls(
            folder=shlex.quote(folder),
            trainer=str(trainer.get("name") or ""),
            has_critic=trainer.get("baseline") == "critic",
            gated={name: gates for name, entry in rewards.items() if (gates := _gates(entry))},
            args=section(trainer, "args"),
            rewards=rewards,
            truncation=str(section(config, "truncation").get("policy") or "none"),
            may_use_vllm=launch.get("rollout") == "hf" and launch.get("device") != "cpu",
            kl_coef=float(coefficient) if isinstance(coefficient, int | float) else None,
        )

    @property
    def limit(self) -> int:
        """Return the maximum number of tokens of a completion."""
        return int(self.number("max_completion_length", _DEFAULT_LIMIT))

    def number(self, name: str, default: float) -> float:
        """Return a numeric argument of TRL, or `default`."""
        value = self.args.get(name)
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else default


def _gates(reward: JsonTree) -> tuple[str, ...]:
    gate = reward.get("gate")
    entries = gate if isinstance(gate, list) else [gate]
    return tuple(str(entry["by"]) for entry in entries if isinstance(entry, dict) and "by" in entry)
