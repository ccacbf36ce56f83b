"""Measure how well scores separate good answers from bad ones, given a label column.

The area under the ROC curve is the probability that a good answer has the higher score, with ties counting a half: the
Mann-Whitney statistic (1947) divided by the number of pairs (Hanley and McNeil 1982).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy

from rlhf_cli.errors import DataError, Prose
from rlhf_cli.measure.score_correlations import as_array, mean_ranks
from rlhf_cli.numerics.intervals import Estimate, wilson
from rlhf_cli.suggest import nearest

_TRUE = ("true", "yes", "1", "1.0", "correct", "good", "right")
_FALSE = ("false", "no", "0", "0.0", "incorrect", "bad", "wrong")


@dataclass(frozen=True)
class Agreement:
    """How well one component agrees with the labels, on the rows that have both a score and a label.

    `roc_auc` is None if all labels are the same. Calling a row good if `score >= threshold` gets the most rows right;
    `agreement` is their share. Among equal thresholds it is the lowest. None means that calling every row bad is at
    least as good.
    """

    name: str
    num_good: int
    num_bad: int
    roc_auc: float | None
    threshold: float | None
    agreement: Estimate


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
            expected="a column that says of each answer whether it is good",
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
                "a label is true or false",
                where=f"--label {column}, row {number + 1} (the first row is 1)",
                got=repr(value)[:80],
                expected=f"{', '.join(_TRUE[:3])}, or {', '.join(_FALSE[:3])}",
                hint=Prose("a column of grades correlates: it is no label. Write whether each answer is good"),
            )
    return labels


def agreement(name: str, scores: Sequence[float | None], labels: Sequence[bool | None]) -> Agreement:
    """Return how well scores separate good rows from bad ones. Rows without a score or a label are left out."""
    pairs = [(score, label) for score, label in zip(scores, labels, strict=True) if score is not None]
    known = [(score, label) for score, label in pairs if label is not None]
    values = as_array([score for score, _ in known])
    good = numpy.array([label for _, label in known], dtype=bool)
    num_good, num_bad = int(good.sum()), int((~good).sum())
    threshold, right = _best_threshold(known)
    auc = None
    if num_good and num_bad:
        above = mean_ranks(values)[good].sum() - num_good * (num_good + 1) / 2
        auc = float(above / (num_good * num_bad))
    return Agreement(name, num_good, num_bad, auc, threshold, wilson(right, len(known)))


def _best_threshold(labelled: Sequence[tuple[float, bool]]) -> tuple[float | None, int]:
    """Return the lowest threshold that gets the most labels right, and how many. None means above every score."""
    right = sum(not label for _, label in labelled)
    best: tuple[float | None, int] = (None, right)
    by_score: dict[float, int] = {}
    for score, label in labelled:
        by_score[score] = by_score.get(score, 0) + (1 if label else -1)
    for score in sorted(by_score, reverse=True):
        right += by_score[score]
        if right > best[1] or (right == best[1] and best[0] is not None):
            best = (score, right)
    return best
