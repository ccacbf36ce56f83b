"""Represent a what-if question: the old and the new experiment, and the changed keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.json_values import JsonValue
from rlhf_cli.plan.reward_components import KEEP_TIME


@dataclass(frozen=True)
class Change:
    """A key with its old and new value; None means no value."""

    key: str
    old: JsonValue
    new: JsonValue


@dataclass(frozen=True)
class Question:
    """The old and the new experiment.

    `words` are those typed, `rescored` the names of rewards whose stored scores do not apply to the new experiment.
    """

    words: tuple[str, ...]
    old: Experiment
    new: Experiment
    changes: tuple[Change, ...]
    rescored: frozenset[str] = frozenset()


def why_not_cheap(experiment: Experiment, name: str) -> str | None:
    """Return why `--recompute` skips a reward, or None if it is a plain, fast function."""
    reward = experiment.rewards[name]
    if reward.fn is None:
        return f"the reward model {reward.model}"
    if reward.fn.startswith(KEEP_TIME):
        return f"{reward.fn}, which asks a server or runs code"
    return "a function that is to be isolated" if reward.isolate else None


def gate_in_words(gate: Mapping[str, object]) -> str:
    """Return `correct >= 1 else zero` for a configured gate."""
    signs = {"at_least": ">=", "at_most": "<=", "equals": "=", "between": "in"}
    told: Sequence[str] = [f"{sign} {_plain(gate[key])}" for key, sign in signs.items() if gate.get(key) is not None]
    return f"{gate['by']} {' and '.join(told)} else {_plain(gate['otherwise'])}"


def _plain(value: object) -> str:
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_plain, value))}]"
    return f"{value:g}" if isinstance(value, float) else str(value)
