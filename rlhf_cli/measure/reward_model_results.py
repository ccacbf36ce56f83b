"""Holds what an evaluation measures of a reward model: accuracy, calibration, length bias, margins, disagreements.

The names are those of the JSON that `rlhf eval` writes, but for `from` and `to`, which Python keeps to itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field

from rlhf_cli.numerics.intervals import Estimate
from rlhf_cli.runs.evaluations import REWARD_MODEL

SUBSET = "subset"
"""RewardBench's column; a slice wherever there is one."""


@dataclass(frozen=True)
class SliceAccuracy(Estimate):
    """Holds the accuracy on some of the pairs; `margin` is their mean difference of rewards, chosen minus rejected."""

    margin: float


@dataclass(frozen=True)
class Span:
    """Holds both ends of a bin of real numbers."""

    start: Annotated[float, Field(alias="from")]
    end: Annotated[float, Field(alias="to")]


@dataclass(frozen=True)
class TokenSpan:
    """Holds both ends of a bin of lengths, in tokens."""

    start: Annotated[int, Field(alias="from")]
    end: Annotated[int, Field(alias="to")]


@dataclass(frozen=True)
class ConfidenceBin(Span):
    """Holds the pairs between two confidences: the mean `confidence`, None in an empty bin, and the accuracy."""

    confidence: float | None
    accuracy: Estimate


@dataclass(frozen=True)
class MarginBin(SliceAccuracy, Span):
    """Holds the accuracy on the pairs whose margin in the data lies between two values."""


@dataclass(frozen=True)
class LengthBin(SliceAccuracy, TokenSpan):
    """Holds the accuracy on the pairs whose difference of lengths, chosen minus rejected, lies between two values."""


@dataclass(frozen=True)
class Calibration:
    """Says whether a model is as sure as it is right: expected calibration error, Brier score, log loss in nats."""

    ece: float
    brier: float
    log_loss: float
    bins: list[ConfidenceBin]


@dataclass(frozen=True)
class RewardDistribution:
    """Holds the rewards of all completions. `deviation` is None where it is no finite number.

    `margin` is the mean of chosen minus rejected. All intervals are over pairs, whose two rewards are not independent.
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
    """Says how much a model likes length: it is then right where the chosen answer is longer, wrong where shorter.

    A slice is None where no pair is of its kind, a correlation where rewards or lengths do not differ. `longer_wins` is
    the accuracy of a judge that always takes the longer answer: the bias that is in the data.
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
    """Compares differences of rewards with the margins in the data, on the `count` pairs that have one.

    A correlation is None where margins or differences are all the same.
    """

    count: int
    spearman: float | None
    pearson: float | None
    bins: list[MarginBin]


@dataclass(frozen=True)
class Disagreement:
    """Holds a pair on which the model is sure of the rejected answer: `confidence` is its probability for that one.

    `row` counts from 0; a text is a string or a list of messages. `subset` is None where there is no such column.
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
    """Counts rewards in bins of one width between the least and the greatest of all completions."""

    counts: list[int]


@dataclass(frozen=True)
class Histograms:
    """Holds the histograms of the chosen and of the rejected completions, which have the same bins."""

    chosen: Histogram
    rejected: Histogram


@dataclass(frozen=True)
class RewardBenchScores:
    """Holds the accuracies of RewardBench's complete sections; `score` is their mean, None unless all four are."""

    sections: dict[str, Estimate]
    score: float | None


@dataclass(frozen=True)
class RewardModelEvaluation:
    """Holds everything that is measured of a reward model on preference pairs.

    `rows` counts pairs, `truncated` completions that were longer than the model takes, `ties` pairs of equal rewards.
    `slices` are by column and value. `margins` is None for data without margins, `rewardbench` for data without a
    complete section of it. `with_eos` says that plain texts ended with the end-of-sequence token.
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
