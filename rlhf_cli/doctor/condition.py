"""Defines what an answer is: what was looked at, what was found, and what to type where it is not as it should be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """How something is: fine, worth knowing, not there, or there and not fitting the rest."""

    OK = "ok"
    WARN = "warn"
    MISSING = "missing"
    UNFIT = "unfit"


@dataclass(frozen=True)
class Condition:
    """One thing that was looked at. `found` never holds a secret.

    `fix` is what to type, None where there is nothing to mend. `is_needed`: nothing can be trained without it.
    """

    area: str
    name: str
    state: State
    found: str
    fix: str | None = None
    is_needed: bool = False

    @property
    def prevents_training(self) -> bool:
        """Return whether nothing can be trained as it is."""
        return self.is_needed and self.state in (State.MISSING, State.UNFIT)


def can_train(conditions: Sequence[Condition]) -> bool:
    """Return whether nothing that is needed is missing or does not fit."""
    return not any(condition.prevents_training for condition in conditions)
