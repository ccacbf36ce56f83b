"""What we add to a TRL trainer: one value, given to the mixed class when it is constructed and never changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from rlhf_cli.stack.settling import Aggregate, Rules
from rlhf_cli.stack.truncation import Truncation
from rlhf_cli.trainers.answers import SumUp
from rlhf_cli.trainers.ppo.critic import Critic
from rlhf_cli.trainers.ppo.kl_penalty import KlPenalty
from rlhf_cli.trainers.ppo.rollout import PpoSettings


class Stack(Protocol):
    """What a trainer needs of a reward stack."""

    outcomes: dict[str, Any]
    decode: Any

    @property
    def components(self) -> Sequence[Rules]: ...
    @property
    def names(self) -> list[str]: ...
    def batch(self) -> AbstractContextManager[None]: ...
    def weights(self, step: int, max_steps: int) -> list[float]: ...
    def close(self) -> None: ...
    def token_values(self, name: str, row: int, clipped_sum: float, divisor: float) -> list[float | None] | None: ...


@dataclass(frozen=True)
class RewardParts:
    """What a trainer that generates is given: how its completions are scored, in training and in an evaluation.

    `is_dense` gives every token an advantage of its own. `sum_up` makes metrics of the answers of an evaluation; None
    leaves TRL's own evaluation as it is.
    """

    stack: Stack
    aggregate: Aggregate = "sum"
    is_dense: bool = False
    truncation: Truncation = field(default_factory=Truncation)
    sum_up: SumUp | None = None


@dataclass(frozen=True)
class PpoParts:
    """What PPO is given beside rewards. `make_critic` is called once, with the policy as the trainer has loaded it."""

    settings: PpoSettings
    kl: KlPenalty
    make_critic: Callable[[Any], Critic]


@dataclass(frozen=True)
class Additions:
    """Everything that the trainers' mixins read. None in `rewards` or `ppo`: the trainer has nothing of the kind.

    `table_log` takes what TRL prints. `measured` are the columns of a prepared row: what it begins with, and the texts
    of which the longest counts; None where TRL prepares no rows. `left_out` counts rows that were refused beforehand,
    name of the data -> reason -> number.
    """

    table_log: Path | None = None
    measured: tuple[tuple[str, ...], tuple[str, ...]] | None = None
    left_out: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    rewards: RewardParts | None = None
    ppo: PpoParts | None = None


class BuiltWhole:
    """The first of all mixins: it keeps the additions, so that every other one finds them from its first line on."""

    additions: Additions

    def __init__(self, *args: Any, additions: Additions, **named: Any) -> None:
        self.additions = additions
        super().__init__(*args, **named)
