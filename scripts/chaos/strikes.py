"""Draw the time, signal and victim of a strike from a seed."""

from __future__ import annotations

import random
import signal
from dataclasses import dataclass

VICTIMS = ("command", "rank", "group")
"""The victim: the command, one of its ranks, or the process groups of both."""
TRACKS = ("none", "none", "wandb_offline")
_IN_SAVES = 0.4
"""Share of the blows that is aimed at saves, which are short."""


@dataclass(frozen=True)
class Case:
    """A struck run: its trainer (`grpo` or `ppo`) and its number of processes."""

    trainer: str
    processes: int

    @property
    def name(self) -> str:
        """Return its name in folders and tables."""
        return f"{self.trainer}-{self.processes}"


@dataclass(frozen=True)
class Strike:
    """One blow, due after the share `at` of a whole run's duration, in [0, 1).

    With `in_save` it waits for the next save to begin, and then for the share `into_save` of a save's usual duration.
    `rank` is the rank to hit if `victim` is `rank`.
    """

    signal: signal.Signals
    at: float
    in_save: bool
    into_save: float
    victim: str
    rank: int


def draw(case: Case, kind: signal.Signals, *, seed: int, run: int, blow: int) -> Strike:
    """Return the blow of these numbers; it does not depend on earlier draws."""
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
    """Return the tracker of the run, which does not change its result."""
    return random.Random(f"{seed} {kind.name} {run}").choice(TRACKS)


def killed_cases() -> list[Case]:
    """Return the cases to kill in turn: four of six with one process, which cost half as much."""
    grpo, ppo, two_grpo, two_ppo = (Case(trainer, processes) for processes in (1, 2) for trainer in ("grpo", "ppo"))
    return [grpo, ppo, two_grpo, ppo, grpo, two_ppo]


def stopped_cases() -> list[Case]:
    """Return the cases to stop in turn, with several ranks that must agree."""
    return [Case(trainer, 2) for trainer in ("grpo", "ppo")]
