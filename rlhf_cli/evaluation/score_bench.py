"""Summarise what `rlhf score` has scored: statistics, correlations, agreement with labels.

NumPy alone imports in a tenth of the time of pandas or scipy.stats. Tests compare these numbers with both.

The area under the ROC curve is the probability that a good answer has the higher score, with ties counting a half: the
Mann-Whitney statistic (1947) divided by the number of pairs (Hanley and McNeil 1982).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations

import numpy
from numpy.typing import NDArray

from rlhf_cli.errors import DataError
from rlhf_cli.rewards.completion_text import as_completion, text_of
from rlhf_cli.rewards.stack.scored_rows import CompletionScores
from rlhf_cli.text.suggest import nearest

QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
"""The reported quantiles; 0 is the minimum, 1 the maximum."""
NUM_BINS = 16


@dataclass(frozen=True)
class ScoreDistribution:
    """The distribution of one component's scores.

    `deviation` is the sample deviation (n - 1), None for fewer than two scores. `quantiles` match QUANTILES. `bins`
    counts the scores in NUM_BINS equal parts from the minimum to the maximum (the last includes its upper end); there
    is one bin if all scores are equal up to rounding. `distinct` is the number of different scores.
    """

    count: int
    mean: float | None
    deviation: float | None
    quantiles: tuple[float, ...]
    bins: tuple[int, ...]
    distinct: int

    def as_json(self) -> dict[str, object]:
        """Return a JSON object, with quantiles keyed by their share: "0.5" is the median."""
        by_share = {f"{share:g}": value for share, value in zip(QUANTILES, self.quantiles, strict=False)}
        return {**asdict(self), "quantiles": by_share}


def distribution(values: Sequence[float | None]) -> ScoreDistribution:
    """Return the distribution of values, leaving out None (no score)."""
    seen = [value for value in values if value is not None]
    if not seen:
        return ScoreDistribution(0, None, None, (), (), 0)
    array = numpy.asarray(seen)
    deviation = float(array.std(ddof=1)) if len(seen) > 1 else None
    bins = [len(seen)]
    edges = numpy.linspace(array.min(), array.max(), NUM_BINS + 1)
    if (edges[:-1] < edges[1:]).all():  # not if the range is too small for distinct edges, such as 0.3 to 0.1 + 0.2
        bins = numpy.histogram(array, bins=NUM_BINS)[0].tolist()
    mean, at_shares = float(array.mean()), tuple(quantiles(seen))
    return ScoreDistribution(len(seen), mean, deviation, at_shares, tuple(bins), len(set(seen)))


def quantiles(values: Sequence[float]) -> list[float]:
    """Return the QUANTILES of values by linear interpolation (Hyndman and Fan's type 7)."""
    return [float(value) for value in numpy.quantile(values, QUANTILES)]


Array = NDArray[numpy.float64]


@dataclass(frozen=True)
class ScoreCorrelation:
    """The correlations of two columns over the `count` rows that have both; None if one of them is constant.

    `ranks` is Spearman's (Pearson's of the ranks, with ties sharing their mean rank); `linear` is Pearson's.
    """

    first: str
    second: str
    ranks: float | None
    linear: float | None
    count: int


def correlations(columns: Mapping[str, Sequence[float | None]]) -> list[ScoreCorrelation]:
    """Return one correlation per pair of columns, in their order. None marks a missing value."""
    arrays = {name: as_array(values) for name, values in columns.items()}
    pairs = []
    for first, second in combinations(arrays, 2):
        both = ~(numpy.isnan(arrays[first]) | numpy.isnan(arrays[second]))
        a, b = arrays[first][both], arrays[second][both]
        pairs.append(ScoreCorrelation(first, second, pearson(mean_ranks(a), mean_ranks(b)), pearson(a, b), len(a)))
    return pairs


def pearson(a: Array, b: Array) -> float | None:
    """Return Pearson's correlation of two columns, or None for a constant column or fewer than two rows."""
    if len(a) < 2 or a.min() == a.max() or b.min() == b.max():
        return None
    return float(numpy.corrcoef(a, b)[0, 1])


def mean_ranks(values: Array) -> Array:
    """Return the ranks from 1; equal values share their mean rank."""
    _, places, counts = numpy.unique(values, return_inverse=True, return_counts=True)
    ranks: Array = (numpy.cumsum(counts) - (counts - 1) / 2.0)[places]
    return ranks


def as_array(values: Sequence[float | None]) -> Array:
    """Return a column with NaN for None."""
    return numpy.array([numpy.nan if value is None else value for value in values], dtype=numpy.float64)


_TRUE = ("true", "yes", "1", "1.0", "correct", "good", "right")
_FALSE = ("false", "no", "0", "0.0", "incorrect", "bad", "wrong")


def labels_of(rows: Sequence[dict[str, object]], column: str) -> list[bool | None]:
    """Return a column as labels: True for good, False for bad, None if empty.

    Raise DataError if the column does not exist or a value is neither good nor bad.
    """
    columns = list(dict.fromkeys(name for row in rows for name in row))
    if column not in columns:
        raise DataError(
            f"the completions have no column {column!r}",
            where="--label",
            got="columns " + ", ".join(columns),
            expected="a column of true and false",
            hint=nearest(column, columns),
        )
    labels: list[bool | None] = []
    for number, row in enumerate(rows):
        value = row.get(column)
        text = str(value).strip().casefold()
        if value is None or text == "":
            labels.append(None)
        elif text in _TRUE or text in _FALSE:
            labels.append(text in _TRUE)
        else:
            raise DataError(
                "a label must be true or false",
                where=f"--label {column}, row {number + 1} (the first row is 1)",
                got=repr(value)[:80],
                expected=f"{', '.join(_TRUE[:3])}, or {', '.join(_FALSE[:3])}",
                advice="a column of grades is not a label: write whether each answer is good",
            )
    return labels


def roc_auc(scores: Sequence[float | None], labels: Sequence[bool | None]) -> float | None:
    """Return how well scores separate good rows from bad ones, of those that have both; None if all are alike."""
    both = zip(scores, labels, strict=True)
    known = [(score, label) for score, label in both if score is not None and label is not None]
    values = as_array([score for score, _ in known])
    good = numpy.array([label for _, label in known], dtype=bool)
    num_good, num_bad = int(good.sum()), int((~good).sum())
    if not num_good or not num_bad:
        return None
    above = mean_ranks(values)[good].sum() - num_good * (num_good + 1) / 2
    return float(above / (num_good * num_bad))


TOTAL, LENGTH = "total", "characters"


@dataclass(frozen=True)
class ScoreBench:
    """Statistics of scored completions.

    `distributions` has the raw scores by component, the total, and the completion's length in characters. `roc_auc`
    has one entry per component and one for the total; it is empty without a label.
    """

    distributions: Mapping[str, ScoreDistribution]
    correlations: Sequence[ScoreCorrelation]
    label: str | None
    roc_auc: Mapping[str, float | None]

    def as_json(self, rows: Sequence[Mapping[str, object]], scores: CompletionScores) -> dict[str, object]:
        """Return the object that `rlhf score --json` prints: rows with prompt and completion, summary, statistics.

        The `rows` entry is a generator: all rows at once would take a gigabyte even before they are serialised.
        """
        named = {"prompt": "prompt", "completion": "completion", **({"label": self.label} if self.label else {})}
        content: dict[str, object] = {
            "rows": (
                {**{name: row.get(column) for name, column in named.items()}, **scored.as_json()}
                for row, scored in zip(rows, scores.rows, strict=True)
            ),
            **scores.as_json(),
        }
        content["distributions"] = {name: found.as_json() for name, found in self.distributions.items()}
        content["correlations"] = [asdict(correlation) for correlation in self.correlations]
        if self.label is not None:
            content["label"] = {"column": self.label, "roc_auc": dict(self.roc_auc)}
        return content


def score_bench(rows: Sequence[dict[str, object]], scores: CompletionScores, *, label: str | None = None) -> ScoreBench:
    """Return the statistics of scored rows; `label` is a column of true and false, or None.

    Raise DataError if `label` is not a valid label column.
    """
    columns: dict[str, list[float | None]] = {
        name: [row.rewards[name].raw for row in scores.rows] for name in scores.summary
    }
    totals = [row.total for row in scores.rows]
    if any(total is not None for total in totals):
        columns[TOTAL] = totals
    columns[LENGTH] = [float(len(text_of(as_completion(row["completion"])))) for row in rows]
    labels = None if label is None else labels_of(rows, label)
    beside = {} if labels is None else {str(label): [None if value is None else float(value) for value in labels]}
    judged = {name: values for name, values in columns.items() if name != LENGTH}
    return ScoreBench(
        distributions={name: distribution(values) for name, values in columns.items()},
        correlations=correlations({**columns, **beside}),
        label=label,
        roc_auc={} if labels is None else {name: roc_auc(values, labels) for name, values in judged.items()},
    )
