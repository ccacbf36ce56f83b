"""Draws when a run is struck, what strikes it and whom it hits, from a seed alone."""

from __future__ import annotations

import random
import signal
from dataclasses import dataclass

VICTIMS = ("command", "rank", "group")
"""Who is hit: the process that was typed, one of its ranks, or the process groups of it and of all its ranks."""
TRACKS = ("none", "none", "wandb_offline")
_IN_SAVES = 0.4
"""So large a share of the blows is aimed at saves, which are short."""


@dataclass(frozen=True)
class Case:
    """What is struck: a trainer (`grpo` or `ppo`) and the number of its processes."""

    trainer: str
    processes: int

    @property
    def name(self) -> str:
        """Return what its folders and the rows of tables are called."""
        return f"{self.trainer}-{self.processes}"


@dataclass(frozen=True)
class Strike:
    """One blow. `at` is the share of a whole run's duration after which it comes, in [0, 1).

    With `in_save` it waits from then on for the next save to begin, and for `into_save` of a save's usual length.
    `rank` is the rank that is hit where `victim` is `rank`.
    """

    signal: signal.Signals
    at: float
    in_save: bool
    into_save: float
    victim: str
    rank: int


def draw(case: Case, kind: signal.Signals, *, seed: int, run: int, blow: int) -> Strike:
    """Return a blow to a run, both by their numbers: the same for the same words, whatever was drawn before."""
    source = random.Random(f"{seed} {kind.name} {run} {blow}")
    victims = VICTIMS if case.processes > 1 else ("command", "group")
    return Strike(
        kind,
        at=source.random(),
        in_save=source.random() < _IN_SAVES,
        into_save=source.random(),
        victim=source.choice(victims),
        rank=source.randrange(case.processes),
    )


def track_of(kind: signal.Signals, *, seed: int, run: int) -> str:
    """Return how that run is tracked, which changes nothing of what comes of it."""
    return random.Random(f"{seed} {kind.name} {run}").choice(TRACKS)


def killed_cases() -> list[Case]:
    """Return what is killed, in turn: of six runs four of one process, which cost half as much as those of two."""
    grpo, ppo, two_grpo, two_ppo = (Case(trainer, processes) for processes in (1, 2) for trainer in ("grpo", "ppo"))
    return [grpo, ppo, two_grpo, ppo, grpo, two_ppo]


def stopped_cases() -> list[Case]:
    """Return what is asked to stop, in turn: several ranks have to agree on it."""
    return [Case(trainer, 2) for trainer in ("grpo", "ppo")]
