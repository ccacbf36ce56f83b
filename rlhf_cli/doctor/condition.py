"""Define the result of a check: its subject, its finding, and what to type to fix it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """The state of something: fine, worth knowing, missing, or incompatible with the rest."""

    OK = "ok"
    WARN = "warn"
    MISSING = "missing"
    UNFIT = "unfit"


@dataclass(frozen=True)
class Condition:
    """The result of one check. `found` never holds a secret.

    `fix` is what to type, or None if there is nothing to fix. `is_needed` is True if training requires it.
    """

    area: str
    name: str
    state: State
    found: str
    fix: str | None = None
    is_needed: bool = False

    @property
    def prevents_training(self) -> bool:
        """Return whether this makes training impossible."""
        return self.is_needed and self.state in (State.MISSING, State.UNFIT)


def can_train(conditions: Sequence[Condition]) -> bool:
    """Return whether everything required is present and compatible."""
    return not any(condition.prevents_training for condition in conditions)
