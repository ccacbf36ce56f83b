"""Hold what we add to a TRL trainer, given to it when it is constructed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from rlhf_cli.numerics.reward_columns import RunningDeviation
from rlhf_cli.rewards.stack.aggregating import Aggregate
from rlhf_cli.rewards.stack.component import Component, RewardOutcome
from rlhf_cli.rewards.stack.token_offsets import Decode, ScoredPart
from rlhf_cli.rewards.stack.truncation import TruncationPolicy
from rlhf_cli.runs.heartbeat import Heartbeat
from rlhf_cli.tables.modes import GenerationSetting, PassSetting
from rlhf_cli.tables.trl_trainers import Normaliser
from rlhf_cli.trainers.ppo.critic import Critic
from rlhf_cli.trainers.ppo.rollout import KlPenalty, PpoSettings
from rlhf_cli.trainers.step_profile import StepProfile
from rlhf_cli.trainers.trl_protocol import TrlTrainer

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class Answer:
    """One answer of the policy. `row` has the dataset's columns; `raw` and `fixed` have one entry per reward."""

    row: dict[str, object]
    completion: str | list[dict[str, object]]
    completion_ids: list[int]
    is_truncated: bool
    raw: list[float | None]
    fixed: list[float | None]


@dataclass(frozen=True)
class Answers:
    """All answers of all ranks to the held-out prompts; the `each` answers to a prompt are adjacent."""

    each: int
    answers: list[Answer]


SumUp = Callable[
    [dict[str, Answers], list[float], int, Mapping[str, RunningDeviation]],
    dict[str, float | None],
]
"""Compute metric -> value from the answers by sampling mode, reward weights, step and running deviations by reward."""


class Stack(Protocol):
    """The interface of a reward stack that a trainer needs."""

    outcomes: dict[str, RewardOutcome]
    decode: Decode | None

    @property
    def components(self) -> Sequence[Component]:
        """Return the components, in the order of the columns."""
        ...

    @property
    def names(self) -> list[str]:
        """Return the names of the components."""
        ...

    def batch(self) -> AbstractContextManager[None]:
        """Open a context in which the stack is evaluated once."""
        ...

    def weights(self, step: int, max_steps: int) -> list[float]:
        """Return every component's weight at that optimizer step."""
        ...

    def close(self) -> None:
        """End the stack's threads and processes."""
        ...

    def parts(self, name: str, row: int) -> list[ScoredPart] | None:
        """Return the parts of a dense row with their rewards; None for a plain score."""
        ...

    def token_values(self, name: str, row: int, divisor: float) -> list[float | None] | None:
        """Return a dense row's values, one per token, after offset and clip and divided by `divisor`.

        Return None if the row's score was not dense.
        """
        ...


@dataclass(frozen=True)
class RewardParts:
    """How a generating trainer scores its completions, in training and in an evaluation.

    `is_dense`: every token has its own advantage. `no_signal`: the run ends after this many consecutive rounds whose
    advantages are all 0; None for never. `sum_up` computes metrics from the answers of an evaluation; None keeps TRL's
    own evaluation. `loss_divisor`: the divisor of the trainer's loss, None if it follows from `loss_type`. `passes`:
    how rows go through the models. `generation`: how completions are generated.
    """

    stack: Stack
    aggregate: Aggregate = "sum"
    is_dense: bool = False
    no_signal: int | None = None
    truncation: TruncationPolicy = field(default_factory=TruncationPolicy)
    sum_up: SumUp | None = None
    loss_divisor: Normaliser | None = None
    passes: PassSetting = "auto"
    generation: GenerationSetting = "auto"


@dataclass(frozen=True)
class PpoParts:
    """The parts that PPO needs beside rewards. `make_critic` is called once, with the loaded policy."""

    settings: PpoSettings
    kl: KlPenalty
    make_critic: Callable[[PreTrainedModel | PeftModel], Critic]


@dataclass(frozen=True)
class Additions:
    """Everything that the trainers' mixins read; None in `rewards` or `ppo` if the trainer does not use them.

    - `table_log` receives TRL's printed output.
    - `measured` are the columns of a prepared row: its beginning, and texts, of which only the longest counts; None if
      TRL prepares no rows.
    - `left_out` counts rows that were rejected earlier, as name of the data -> reason -> number.
    - `ends_with_eos`: whether the texts of a reward model's training end with the end-of-sequence token; None without
      one.
    - `may_lose_state`: resume a checkpoint without optimizer, schedule or random state from its weights alone, instead
      of refusing it.
    - `heartbeat` receives the current phase, and `profile` measures times; None to disable.
    """

    table_log: Path | None = None
    measured: tuple[tuple[str, ...], tuple[str, ...]] | None = None
    left_out: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    ends_with_eos: bool | None = None
    may_lose_state: bool = False
    heartbeat: Heartbeat | None = None
    profile: StepProfile | None = None
    rewards: RewardParts | None = None
    ppo: PpoParts | None = None


class BuiltWhole(TrlTrainer):
    """First of all mixins; it stores the additions before any other mixin's constructor runs."""

    additions: Additions

    def __init__(self, *args: Any, additions: Additions, **named: Any) -> None:
        self.additions = additions
        super().__init__(*args, **named)
