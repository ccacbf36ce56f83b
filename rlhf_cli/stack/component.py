"""A named reward as the stack runs it, and its outcome for a batch."""

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
    """A reward function and its rules, applied in the order raw, offset, clip, normalize, gate, weight.

    `timeout_s` limits one call on a batch, or on one row if the function is isolated. `eager` also computes rows whose
    gate is closed, for inspection; they still count as closed.
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
    """The result of one component for this rank's rows of a batch.

    `raw[i]` is the score, or None. `fixed[i]` is a number that replaces the processed score, after a closed gate or a
    failure. If both are None the row is excluded: the component does not apply to it. `tokens[i]` are the values of a
    dense reward, None for a plain score. `spans[i]` are the spans it returned, None if it returned one value per token.
    Of the elapsed `seconds`, it computed for `busy_s` and waited for the rest.
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
        """Return an outcome for `num_rows` rows that are not computed yet."""
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
