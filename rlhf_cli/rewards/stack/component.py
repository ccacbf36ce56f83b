"""Hold one named reward with its gates, the batch it is called with, and its outcome or failed call.

A gate lets a reward count for a row only if another reward's raw score is within bounds. These are the conditioned
rewards of GDPO (arXiv 2601.05242, equation 8): an easy reward is given only if a hard one is met, so that the policy
cannot collect the easy one instead. Gates form a graph. Rewards are evaluated in its topological order, and not
computed for rows that their gates closed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from typing import TYPE_CHECKING, Literal, TypeAlias

from rlhf_cli.errors import RewardError, RewardFailed, described
from rlhf_cli.rewards.stack.aggregating import Schedule
from rlhf_cli.rewards.stack.returned_scores import Spread, TokenValues

if TYPE_CHECKING:
    from rlhf_cli.rewards.dense import Span


@dataclass(frozen=True)
class ScoreGate:
    """A gate, open if `low <= raw score of `by` <= high`; a closed one gives `otherwise`, or excludes the row."""

    by: str
    low: float = float("-inf")
    high: float = float("inf")
    otherwise: float | Literal["exclude"] = 0.0

    def is_open(self, raw: float | None) -> bool:
        """Return whether the gate is open for a row whose raw score of `by` is `raw` (None for no score)."""
        return raw is not None and self.low <= raw <= self.high


def levels(reads: Mapping[str, Collection[str]]) -> list[list[str]]:
    """Return the names in levels, each after what it reads; `reads`: reward -> those of its gates. Raise CycleError."""
    sorter = TopologicalSorter(reads)
    sorter.prepare()
    order, in_order = list(reads), []
    while sorter.is_active():
        in_order.append(sorted(sorter.get_ready(), key=order.index))
        sorter.done(*in_order[-1])
    return in_order


@dataclass(frozen=True)
class Component:
    """A reward function and its rules, applied in the order raw, offset, clip, normalize, gate, weight.

    `timeout_s` limits one call on a batch, or on one row if the function is isolated. `eager` also computes rows whose
    gate is closed, for inspection; they still count as closed. `eval_only` is not computed while training.
    """

    name: str
    score: Callable[..., object]
    weight: float | Schedule = 1.0  # never normalised: changing one leaves the others unchanged
    gates: tuple[ScoreGate, ...] = ()
    offset: float = 0.0
    clip: tuple[float, float] | None = None
    normalize: Literal["none", "batch", "group", "running"] = "none"
    on_error: Literal["raise", "exclude"] | float = "raise"
    timeout_s: float | None = None
    eager: bool = False
    spread: Spread = "last"
    per: Literal["turn"] | None = None
    eval_only: bool = False


@dataclass
class RewardOutcome:
    """The result of one component for this rank's rows of a batch.

    `raw[i]` is the score, or None. `fixed[i]` is a number that replaces the processed score, after a closed gate or a
    failure. If both are None the row is excluded: the component does not apply to it. `tokens[i]` are the values of a
    dense reward, None for a plain score. `spans[i]` are the spans it returned, None if it returned one value per token.
    `turns[i]` are values per turn, which get their tokens later; else None. `calls` counts the rows that were
    computed, `calls_saved` those that gates closed.
    """

    raw: list[float | None]
    fixed: list[float | None]
    closed_by: list[str | None]
    errors: list[str | None]
    tokens: list[TokenValues | None]
    spans: list[list[Span] | None]
    turns: list[TokenValues | None]
    timeouts: int = 0
    calls: int = 0
    calls_saved: int = 0
    seconds: float = 0.0
    extra: dict[str, list[object]] = field(default_factory=dict)

    @classmethod
    def empty(cls, num_rows: int) -> RewardOutcome:
        """Return an outcome for `num_rows` rows that are not computed yet."""
        return cls(*([None] * num_rows for _ in range(7)))  # type: ignore[arg-type]

    @property
    def has_parts(self) -> bool:
        """Return whether a row has values per token or per turn."""
        return any(row is not None for row in [*self.tokens, *self.turns])

    @property
    def has_token_values(self) -> bool:
        """Return whether the function returned values per token for a row, and no spans."""
        return any(values and spans is None for values, spans in zip(self.tokens, self.spans, strict=True))

    @property
    def num_open(self) -> int:
        """Count the rows that no gate closed."""
        return self.closed_by.count(None)

    @property
    def num_excluded(self) -> int:
        """Count the rows this component does not apply to."""
        return sum(raw is None and fixed is None for raw, fixed in zip(self.raw, self.fixed, strict=True))

    @property
    def num_errors(self) -> int:
        """Count the rows whose computation failed."""
        return len(self.errors) - self.errors.count(None)


Batch: TypeAlias = Mapping[str, object]
"""Name -> TRL's reward argument or a dataset column; tables/trl_values lists those with entries per row."""


def by_row(batch: Batch, name: str) -> Sequence[object]:
    """Return an argument that has one entry per row. Raise TypeError if it is not a sequence."""
    values = batch[name]
    if not isinstance(values, Sequence):
        raise TypeError(f"`{name}` is not a list: {type(values).__name__}")
    return values


class RewardTimeout(Exception):
    """Raised if a reward function did not answer in time."""


@dataclass(frozen=True)
class FailedCall:
    """A call's input and error: this rank's whole batch, the rows that the function was given, the row to blame."""

    component: Component
    batch: Batch
    rows: Sequence[int]
    row: int | None
    error: BaseException

    @property
    def message(self) -> str:
        """Return the error message, on one line unless the error has several."""
        return str(self.error) if self.is_timeout else described(self.error)

    @property
    def is_timeout(self) -> bool:
        """Return whether the call timed out."""
        return isinstance(self.error, RewardTimeout)

    def fail(self, outcome: RewardOutcome, keep: Callable[[FailedCall], str | None]) -> None:
        """Apply `on_error` to the row to blame, or to all; if it is `raise`, raise RewardFailed, or the RewardError.

        `keep` keeps the call and returns the command that replays it, or None.
        """
        component, error, key = self.component, self.error, f"rewards.{self.component.name}"
        replay = keep(self)
        if component.on_error == "raise":
            asked = None
            if self.row is not None:
                completion, prompt = (by_row(self.batch, name)[self.row] for name in ("completions", "prompts"))
                asked = f"the completion {completion!r:.200} of the prompt {prompt!r:.120}"
            if isinstance(error, RewardError):
                if error.row is not None and self.row is not None:
                    error.what = error.what.replace(f"row {error.row}", f"row {self.row}")
                    error.got = f"{error.got}, for {asked}"
                    error.row = self.row
                error.hint = ", or ".join(filter(None, (error.hint, hints(replay=replay)))) or None
                raise error
            rows = f"a batch of {len(self.rows)} rows" if self.row is None else f"row {self.row}"
            has_passed = any(score is not None for score in outcome.raw)
            failed = RewardFailed(
                f"reward {component.name!r} failed on {rows}",
                where=key,
                got=self.message,
                expected=None if asked is None else f"a score for {asked}",
                hint=hints(
                    f"{key}.on_error=exclude  # continues without such rows" if has_passed else None,
                    f"{key}.timeout_s=off  # or a number of seconds" if self.is_timeout else None,
                    replay=replay,
                ),
            )
            failed.reward, failed.row = component.name, self.row
            raise failed from error
        for row in self.rows if self.row is None else [self.row]:
            outcome.errors[row] = self.message
            outcome.timeouts += self.is_timeout
            outcome.fixed[row] = None if component.on_error == "exclude" else component.on_error


def hints(*lines: str | None, replay: str | None) -> str | None:
    """Return the hint of an error: how to replay the call, if it was kept, and `lines`; None if all are None."""
    first = None if replay is None else f"{replay}  # scores these rows again"
    return "\n".join(line for line in (first, *lines) if line is not None) or None
