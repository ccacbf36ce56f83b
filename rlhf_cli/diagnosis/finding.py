"""Define the results of a check: a finding, a passed check, or a check that was impossible."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

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
class Change:
    """An override to type, such as `rewards.brevity.weight=0`, and its effect."""

    words: str
    reason: str


@dataclass(frozen=True)
class Finding:
    """A present or imminent problem.

    `kind` is one of tables/finding_kinds.py; `subject` is the reward or pair concerned if there may be several, else
    ''. `what` is the headline, with numbers. `first_step` and `last_step` are the optimizer steps in which it was
    observed.
    """

    kind: str
    subject: str
    severity: Severity
    what: str
    evidence: tuple[Evidence, ...]
    first_step: int
    last_step: int
    changes: tuple[Change, ...] = ()


@dataclass(frozen=True)
class Fine:
    """A check that passed; `says` has the numbers."""

    kind: str
    says: str


@dataclass(frozen=True)
class Unseen:
    """A check that was impossible, and why: a metric that is not logged, too few steps, too much noise."""

    kind: str
    why: str


Seen: TypeAlias = Finding | Fine | Unseen


def worst_first(findings: list[Finding]) -> list[Finding]:
    """Return the findings sorted by severity, worst first, and otherwise in their order."""
    return sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity))
