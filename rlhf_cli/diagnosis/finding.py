"""What a look at the log of a run comes to: something found, something that is fine, something that cannot be seen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Severity = Literal["serious", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("serious", "warning", "note")
"""From the worst on. serious: what the run was for is not happening. warning: it costs the run something, or soon will.
note: true, and worth a thought; it is not said while training."""


@dataclass(frozen=True)
class Evidence:
    """A metric that a finding rests on: its curve, and what it says in words with numbers and steps."""

    metric: str
    says: str
    steps: tuple[int, ...] = ()
    values: tuple[float, ...] = ()


@dataclass(frozen=True)
class Change:
    """What to type, an override such as `rewards.brevity.weight=0`, and what it would do."""

    words: str
    reason: str


@dataclass(frozen=True)
class Finding:
    """Something that is wrong, or soon will be.

    `kind` is one of tables/finding_kinds.py, `subject` what it is about where there may be several (a reward, a pair),
    else ''. `what` is the headline, with numbers. `first_step` and `last_step` are the optimizer steps it was seen in.
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
    """Something that was looked at and is as it should be; `says` has the numbers."""

    kind: str
    says: str


@dataclass(frozen=True)
class Unseen:
    """Something that could not be looked at, and why: a metric that is not logged, too few steps, too much noise."""

    kind: str
    why: str


Seen: TypeAlias = Finding | Fine | Unseen


def worst_first(findings: list[Finding]) -> list[Finding]:
    """Return the findings from the worst on; within a severity in the order they were looked for."""
    return sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity))
