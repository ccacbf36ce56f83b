"""Summarise what `rlhf score` has scored: quantiles, and rank correlations with each other and with a label."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations

import numpy
from numpy.typing import NDArray

from rlhf_cli.errors import DataError
from rlhf_cli.rewards.completion_text import text_of
from rlhf_cli.rewards.stack.scored_rows import CompletionScores
from rlhf_cli.text.suggest import nearest

QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
"""The reported quantiles; 0 is the minimum, 1 the maximum."""
Array = NDArray[numpy.float64]


@dataclass(frozen=True)
class ScoreDistribution:
    """The distribution of one component's scores, by share: "0.5" is the median; `deviation` is that of a sample."""

    count: int
    mean: float | None
    deviation: float | None
    quantiles: Mapping[str, float]


def distribution(values: Sequence[float | None]) -> ScoreDistribution:
    """Return the distribution of values, leaving out None (no score)."""
    seen = [value for value in values if value is not None]
    if not seen:
        return ScoreDistribution(0, None, None, {})
    deviation = float(numpy.std(seen, ddof=1)) if len(seen) > 1 else None
    return ScoreDistribution(len(seen), float(numpy.mean(seen)), deviation, quantiles(seen))


def quantiles(values: Sequence[float]) -> dict[str, float]:
    """Return the QUANTILES of values, by share, by linear interpolation (Hyndman and Fan's type 7)."""
    found = numpy.quantile(values, QUANTILES).tolist()
    return {f"{share:g}": value for share, value in zip(QUANTILES, found, strict=True)}


@dataclass(frozen=True)
class ScoreCorrelation:
    """Spearman's correlation of two columns over the `count` rows that have both; None if one of them is constant."""

    first: str
    second: str
    ranks: float | None
    count: int


def correlations(columns: Mapping[str, Sequence[float | None]]) -> list[ScoreCorrelation]:
    """Return one correlation per pair of columns, in their order. None marks a missing value."""
    arrays = {name: numpy.array(values, dtype=numpy.float64) for name, values in columns.items()}
    pairs = []
    for first, second in combinations(arrays, 2):
        both = ~(numpy.isnan(arrays[first]) | numpy.isnan(arrays[second]))
        a, b = arrays[first][both], arrays[second][both]
        pairs.append(ScoreCorrelation(first, second, pearson(mean_ranks(a), mean_ranks(b)), len(a)))
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


_TRUE = ("true", "yes", "1", "1.0", "correct", "good", "right")
_FALSE = ("false", "no", "0", "0.0", "incorrect", "bad", "wrong")
_LABELS: dict[str, float | None] = {"": None, **dict.fromkeys(_TRUE, 1.0), **dict.fromkeys(_FALSE, 0.0)}


def labels_of(rows: Sequence[dict[str, object]], column: str) -> list[float | None]:
    """Return a column as labels: 1 for good, 0 for bad, None if empty. Raise DataError for any other value."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    if column not in columns:
        what, got = f"the completions have no column {column!r}", "columns " + ", ".join(columns)
        expected, close = "a column of true and false", nearest(column, columns)
        raise DataError(what, where="--label", got=got, expected=expected, hint=close)
    values = ["" if row.get(column) is None else row[column] for row in rows]
    for number, value in enumerate(values, 1):
        if str(value).strip().casefold() not in _LABELS:
            what, where = "a label must be true or false", f"--label {column}, row {number} (the first row is 1)"
            got, expected = repr(value)[:80], f"{', '.join(_TRUE[:3])}, or {', '.join(_FALSE[:3])}"
            advice = "a column of grades is not a label: write whether each answer is good"
            raise DataError(what, where=where, got=got, expected=expected, advice=advice)
    return [_LABELS[str(value).strip().casefold()] for value in values]


@dataclass(frozen=True)
class ScoreBench:
    """The distributions of raw scores, total and length in characters, and their correlations; `label`: its column."""

    distributions: Mapping[str, ScoreDistribution]
    correlations: Sequence[ScoreCorrelation]
    label: str | None

    def as_json(self, rows: Sequence[Mapping[str, object]], scores: CompletionScores) -> dict[str, object]:
        """Return the object that `rlhf score --json` prints: rows with prompt and completion, summary, statistics.

        The `rows` entry is a generator: all rows at once would take a gigabyte even before they are serialised.
        """
        named = {"prompt": "prompt", "completion": "completion", **({"label": self.label} if self.label else {})}
        return {
            "rows": (
                {**{name: row.get(column) for name, column in named.items()}, **scored.as_json()}
                for row, scored in zip(rows, scores.rows, strict=True)
            ),
            **scores.as_json(),
            "distributions": {name: asdict(found) for name, found in self.distributions.items()},
            "correlations": [asdict(correlation) for correlation in self.correlations],
            **({"label": self.label} if self.label else {}),
        }


def score_bench(rows: Sequence[dict[str, object]], scores: CompletionScores, *, label: str | None = None) -> ScoreBench:
    """Return the statistics of scored rows. Raise DataError if `label` is no column of true and false."""
    columns = {name: [row.rewards[name].raw for row in scores.rows] for name in scores.summary}
    totals = [row.total for row in scores.rows]
    columns |= {"total": totals} if any(total is not None for total in totals) else {}
    characters: list[float | None] = [float(len(text_of(row["completion"]))) for row in rows]
    columns["characters" if "characters" not in columns else "completion.characters"] = characters
    distributions = {name: distribution(values) for name, values in columns.items()}
    named = f"{label} (label)" if label in columns else label  # a reward may have the same name
    beside = {} if label is None or named is None else {named: labels_of(rows, label)}
    return ScoreBench(distributions, correlations({**columns, **beside}), label)
