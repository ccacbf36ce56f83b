"""Summarise the output of `rlhf score`: distributions, correlations, and agreement with a label."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from rlhf_cli.measure.component_statistics import Distribution, distribution
from rlhf_cli.measure.label_agreement import Agreement, agreement, labels_of
from rlhf_cli.measure.score_correlations import Correlation, correlations
from rlhf_cli.measure.scored_rows import CompletionScores
from rlhf_cli.measure.two_weightings import TwoWeightings, two_weightings
from rlhf_cli.rewards.completion_text import as_completion, text_of

TOTAL, LENGTH = "total", "characters"
_MOST_DISAGREEING = 3


@dataclass(frozen=True)
class ScoreBench:
    """Statistics of scored completions.

    `distributions` has the raw scores by component, the total, and the completion's length in characters. `agreements`
    has one entry per component and one for the total; it is empty without a label. `disagreeing` lists the rows whose
    total contradicts their label most: good ones with the lowest totals, bad ones with the highest.
    """

    distributions: Mapping[str, Distribution]
    correlations: Sequence[Correlation]
    label: str | None
    agreements: Sequence[Agreement]
    disagreeing: Sequence[int]
    against: TwoWeightings | None

    def as_json(self, rows: Sequence[Mapping[str, object]], scores: CompletionScores) -> dict[str, object]:
        """Return the object that `rlhf score --json` prints: rows with prompt and completion, summary, statistics.

        The `rows` entry is a generator that makes each row when it is written. All rows at once would take a gigabyte
        even before they are serialised.
        """
        named = {"prompt": "prompt", "completion": "completion", **({"label": self.label} if self.label else {})}
        content: dict[str, object] = {
            "rows": (
                {**{name: row.get(column) for name, column in named.items()}, **one.as_json()}
                for row, one in zip(rows, scores.rows, strict=True)
            ),
            **scores.as_json(),
        }
        content["distributions"] = {name: one.as_json() for name, one in self.distributions.items()}
        content["correlations"] = [asdict(one) for one in self.correlations]
        if self.label is not None:
            content["label"] = {
                "column": self.label,
                "agreements": [asdict(one) for one in self.agreements],
                "disagreeing_rows": list(self.disagreeing),
            }
        if self.against is not None:
            content["against"] = asdict(self.against)
        return content


def score_bench(
    rows: Sequence[dict[str, object]],
    scores: CompletionScores,
    *,
    label: str | None = None,
    other: tuple[Sequence[str], CompletionScores] | None = None,
) -> ScoreBench:
    """Return the statistics of scored rows.

    `label` is a column of true and false, or None. `other` is (overrides, the scores of the same rows with them). Raise
    DataError if `label` is not a valid label column.
    """
    columns: dict[str, list[float | None]] = {
        name: [row.rewards[name].raw for row in scores.rows] for name in scores.summary
    }
    totals = [row.total for row in scores.rows]
    has_total = any(total is not None for total in totals)
    if has_total:
        columns[TOTAL] = totals
    columns[LENGTH] = [float(len(text_of(as_completion(row["completion"])))) for row in rows]
    labels = None if label is None else labels_of(rows, label)
    beside = {} if labels is None else {str(label): [None if one is None else float(one) for one in labels]}
    judged = {name: values for name, values in columns.items() if name != LENGTH}
    against = None
    if other is not None:
        words, again = other
        prompts = [row.get("prompt") for row in rows]
        against = two_weightings(words, prompts, totals, [row.total for row in again.rows], labels)
    return ScoreBench(
        distributions={name: distribution(values) for name, values in columns.items()},
        correlations=correlations({**columns, **beside}),
        label=label,
        agreements=[] if labels is None else [agreement(name, values, labels) for name, values in judged.items()],
        disagreeing=[] if labels is None or not has_total else _disagreeing(totals, labels),
        against=against,
    )


def _disagreeing(totals: Sequence[float | None], labels: Sequence[bool | None]) -> list[int]:
    """Return good rows that some bad row beats, lowest first, and bad rows that beat some good one, highest first."""
    good = sorted((total, row) for row, total in enumerate(totals) if total is not None and labels[row] is True)
    bad = sorted((-total, row) for row, total in enumerate(totals) if total is not None and labels[row] is False)
    if not good or not bad:
        return []
    beaten = [row for total, row in good if total < -bad[0][0]]
    beating = [row for total, row in bad if -total > good[0][0]]
    return [*beaten[:_MOST_DISAGREEING], *beating[:_MOST_DISAGREEING]]
