"""Dataclasses for a reward model's evaluation: accuracy, calibration, length bias, margins and disagreements.

The names are those in the JSON of `rlhf eval`, except `from` and `to`, which are `start` and `end` here: `from` is a
Python keyword.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field

from rlhf_cli.numerics.intervals import Estimate
from rlhf_cli.runs.evaluations import REWARD_MODEL

SUBSET = "subset"
"""RewardBench's column. If it exists, it is always a slice."""


@dataclass(frozen=True)
class SliceAccuracy(Estimate):
    """The accuracy on some of the pairs; `margin` is their mean reward difference, chosen minus rejected."""

    margin: float


@dataclass(frozen=True)
class Span:
    """Both ends of a bin of real numbers."""

    start: Annotated[float, Field(alias="from")]
    end: Annotated[float, Field(alias="to")]


@dataclass(frozen=True)
class TokenSpan:
    """Both ends of a bin of lengths, in tokens."""

    start: Annotated[int, Field(alias="from")]
    end: Annotated[int, Field(alias="to")]


@dataclass(frozen=True)
class ConfidenceBin(Span):
    """The pairs in a confidence range: their mean `confidence` (None if the bin is empty) and accuracy."""

    confidence: float | None
    accuracy: Estimate


@dataclass(frozen=True)
class MarginBin(SliceAccuracy, Span):
    """The accuracy on the pairs whose margin in the data is in a range."""


@dataclass(frozen=True)
class LengthBin(SliceAccuracy, TokenSpan):
    """The accuracy on the pairs whose length difference, chosen minus rejected, is in a range."""


@dataclass(frozen=True)
class Calibration:
    """How well confidence matches accuracy: expected calibration error, Brier score, log loss in nats."""

    ece: float
    brier: float
    log_loss: float
    bins: list[ConfidenceBin]


@dataclass(frozen=True)
class RewardDistribution:
    """The rewards of all completions. `deviation` is None if it is not finite.

    `margin` is the mean of chosen minus rejected. All intervals are over pairs, because the two rewards of a pair are
    not independent.
    """

    mean: Estimate
    deviation: float | None
    chosen: Estimate
    rejected: Estimate
    margin: Estimate
    min: float
    max: float


@dataclass(frozen=True)
class LengthBias:
    """How much a model prefers length: it is then right if the chosen answer is longer, and wrong if it is shorter.

    A slice is None if it has no pairs; a correlation is None if rewards or lengths are constant. `longer_wins` is the
    accuracy of always choosing the longer answer, which is the bias of the data itself.
    """

    unit: str
    chosen_longer: SliceAccuracy | None
    same: SliceAccuracy | None
    chosen_shorter: SliceAccuracy | None
    pearson: float | None
    spearman: float | None
    longer_wins: Estimate
    bins: list[LengthBin]


@dataclass(frozen=True)
class MarginAgreement:
    """Reward differences compared with the margins in the data, on the `count` pairs that have a margin.

    A correlation is None if margins or differences are constant.
    """

    count: int
    spearman: float | None
    pearson: float | None
    bins: list[MarginBin]


@dataclass(frozen=True)
class Disagreement:
    """A pair on which the model prefers the rejected answer; `confidence` is its probability for that answer.

    `row` counts from 0; a text is a string or a list of messages. `subset` is None if the data has no such column.
    """

    row: int
    prompt: object
    chosen: object
    rejected: object
    reward_chosen: float
    reward_rejected: float
    confidence: float
    subset: object = None


@dataclass(frozen=True)
class Histogram(Span):
    """Counts of rewards in equal bins from the minimum to the maximum of all completions."""

    counts: list[int]


@dataclass(frozen=True)
class Histograms:
    """Histograms of the chosen and the rejected completions, with the same bins."""

    chosen: Histogram
    rejected: Histogram


@dataclass(frozen=True)
class RewardBenchScores:
    """Accuracies of RewardBench's complete sections; `score` is their mean, None unless all four are complete."""

    sections: dict[str, Estimate]
    score: float | None


@dataclass(frozen=True)
class RewardModelEvaluation:
    """All results of evaluating a reward model on preference pairs.

    `rows` counts pairs, `truncated` completions longer than the model's limit, and `ties` pairs with equal rewards.
    `slices` is keyed by column and value. `margins` is None for data without margins, `rewardbench` for data without a
    complete RewardBench section. `with_eos` says that plain texts ended with the end-of-sequence token.
    """

    kind: ClassVar[str] = REWARD_MODEL

    rows: int
    pairs_per_second: float
    truncated: int
    accuracy: Estimate
    ties: int
    calibration: Calibration
    rewards: RewardDistribution
    length: LengthBias
    slices: dict[str, dict[str, SliceAccuracy]]
    margins: MarginAgreement | None
    worst: list[Disagreement]
    histogram: Histograms
    rewardbench: RewardBenchScores | None = None
    with_eos: bool = False
