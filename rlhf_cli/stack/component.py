"""Hold one named reward as the stack runs it, and its outcome for a batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from rlhf_cli.rewards.dense import Span
from rlhf_cli.stack.gates import Gate
from rlhf_cli.stack.token_values import Spread, TokenValues
from rlhf_cli.stack.weight_schedule import Weight

OnError = Literal["raise", "exclude"] | float


@dataclass(frozen=True)
class Component:
    """Hold a reward function and the rules around it. The order is raw, offset, clip, normalize, gate, weight.

    `timeout_s` bounds one call on a batch (one row where the function is isolated). `eager` computes rows whose gate is
    closed as well, to look at them; they count as closed all the same.
    """

    name: str
    score: Callable[..., object]
    weight: Weight = 1.0
    gates: tuple[Gate, ...] = ()
    offset: float = 0.0
    clip: tuple[float, float] | None = None
    normalize: Literal["none", "batch", "group", "running"] = "none"
    on_error: OnError = "raise"
    timeout_s: float | None = None
    eager: bool = False
    spread: Spread = "last"


@dataclass
class Outcome:
    """Hold what one component gave a batch of rows (this rank's).

    `raw[i]` is the score, None where there is none. `fixed[i]` is a number that takes the place of everything the score
    would have gone through: a closed gate's or a failure's. Where both are None the row is excluded: the component
    does not apply to it. `tokens[i]` are the values a dense reward gave, None for a plain score;
    `spans[i]` the parts that it named, None where it gave a value a token. Of the `seconds` that it took it
    was computing for `busy_s`; the rest it waited.
    """

    raw: list[float | None]
    fixed: list[float | None]
    closed_by: list[str | None]
    errors: list[str | None]
    tokens: list[TokenValues | None]
    spans: list[list[Span] | None]
    timeouts: int = 0
    calls: int = 0
    calls_saved: int = 0
    seconds: float = 0.0
    busy_s: float = 0.0
    extra: dict[str, list[object]] = field(default_factory=dict)

    @classmethod
    def empty(cls, num_rows: int) -> Outcome:
        """Return the outcome of `num_rows` rows of which none has been computed."""
        nothing: list[None] = [None] * num_rows
        return cls([*nothing], [*nothing], [*nothing], [*nothing], [*nothing], [*nothing])

    @property
    def num_open(self) -> int:
        """Count the rows that no gate closed."""
        return self.closed_by.count(None)

    @property
    def num_excluded(self) -> int:
        """Count the rows this component does not apply to."""
        if None not in self.raw:
            return 0
        return sum(raw is None and fixed is None for raw, fixed in zip(self.raw, self.fixed, strict=True))

    @property
    def num_errors(self) -> int:
        """Count the rows whose computation failed."""
        return len(self.errors) - self.errors.count(None)
