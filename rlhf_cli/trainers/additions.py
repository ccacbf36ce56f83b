"""Hold what we add to a TRL trainer: one value, given to the mixed class when it is constructed and never changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from rlhf_cli.runs.pulse import Pulse
from rlhf_cli.stack.aggregating import Aggregate
from rlhf_cli.stack.component import Outcome
from rlhf_cli.stack.parts import Part
from rlhf_cli.stack.settling import Rules
from rlhf_cli.stack.token_offsets import Decode
from rlhf_cli.stack.truncation import Truncation
from rlhf_cli.tables.generation_modes import GenerationSetting
from rlhf_cli.tables.pass_modes import PassSetting
from rlhf_cli.tables.policy_losses import Normaliser
from rlhf_cli.trainers.answers import SumUp
from rlhf_cli.trainers.ppo.critic import Critic
from rlhf_cli.trainers.ppo.kl_penalty import KlPenalty
from rlhf_cli.trainers.ppo.rollout import PpoSettings
from rlhf_cli.trainers.step_profile import StepProfile
from rlhf_cli.trainers.trl_protocol import TrlTrainer

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel


class Stack(Protocol):
    """Name what a trainer needs of a reward stack."""

    outcomes: dict[str, Outcome]
    decode: Decode | None

    @property
    def components(self) -> Sequence[Rules]:
        """Return the components, in the order of the columns."""
        ...

    @property
    def names(self) -> list[str]:
        """Return their names."""
        ...

    def batch(self) -> AbstractContextManager[None]:
        """Open a context in which the stack is evaluated once."""
        ...

    def weights(self, step: int, max_steps: int) -> list[float]:
        """Return every component's weight while that optimizer step is prepared."""
        ...

    def close(self) -> None:
        """End whatever the stack keeps running."""
        ...

    def parts(self, name: str, row: int) -> list[Part] | None:
        """Return the parts of a dense row with the rewards they were given; None for a plain score."""
        ...

    def token_values(self, name: str, row: int, divisor: float) -> list[float | None] | None:
        """Return the values of a dense row, one a token, after offset and clip and divided by `divisor`; None for a row
        whose score was no dense one.
        """
        ...


@dataclass(frozen=True)
class RewardParts:
    """Hold what a trainer that generates is given: how its completions are scored, in training and in an evaluation.

    `is_dense` gives every token an advantage of its own. So many rounds in a row whose advantages are all 0 end the run
    as `no_signal` says, None never. `sum_up` makes metrics of the answers of an evaluation; None leaves TRL's own
    evaluation as it is. `loss_divisor`: what the trainer's loss divides by, None where `loss_type` says it.
    `passes`: how rows go through the models, `generation`: how completions are generated.
    """

    stack: Stack
    aggregate: Aggregate = "sum"
    is_dense: bool = False
    no_signal: int | None = None
    truncation: Truncation = field(default_factory=Truncation)
    sum_up: SumUp | None = None
    loss_divisor: Normaliser | None = None
    passes: PassSetting = "auto"
    generation: GenerationSetting = "auto"


@dataclass(frozen=True)
class PpoParts:
    """Hold what PPO is given beside rewards. `make_critic` is called once, with the policy as the trainer has loaded
    it.
    """

    settings: PpoSettings
    kl: KlPenalty
    make_critic: Callable[[PreTrainedModel | PeftModel], Critic]


@dataclass(frozen=True)
class Additions:
    """Hold everything that the trainers' mixins read. None in `rewards` or `ppo`: the trainer has nothing of the
    kind.

    `table_log` takes what TRL prints. `measured` are the columns of a prepared row: what it begins with, and the texts
    of which the longest counts; None where TRL prepares no rows. `left_out` counts rows that were refused beforehand,
    name of the data -> reason -> number. `ends_with_eos`: whether the texts that a reward model learns from end
    with the end-of-sequence token; None where none is trained. `may_lose_state`: a checkpoint without its optimizer,
    schedule or random state is gone on from by its weights alone, and refused otherwise. `pulse` is told what is being
    done, and `profile` says where the time went; None where nobody asks.
    """

    table_log: Path | None = None
    measured: tuple[tuple[str, ...], tuple[str, ...]] | None = None
    left_out: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    ends_with_eos: bool | None = None
    may_lose_state: bool = False
    pulse: Pulse | None = None
    profile: StepProfile | None = None
    rewards: RewardParts | None = None
    ppo: PpoParts | None = None


class BuiltWhole(TrlTrainer):
    """Mixed in as the first of all, it keeps the additions, so that every other mixin can read them from its first line
    on.
    """

    additions: Additions

    def __init__(self, *args: Any, additions: Additions, **named: Any) -> None:
        self.additions = additions
        super().__init__(*args, **named)
