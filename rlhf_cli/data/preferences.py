"""Find what is wrong with preference pairs, which TRL accepts silently, and compute their margins.

Llama 2 (arXiv 2307.09288, 3.2.2) puts a margin into the loss, -log sigmoid(r_chosen - r_rejected - margin), so that the
scores of a clearly better answer are pushed further apart.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rlhf_cli.data.rows import Dataset, Table, at_rows, is_empty, values_of
from rlhf_cli.data.source import missing_column
from rlhf_cli.errors import DataError

IDS = ("chosen_ids", "rejected_ids")  # columns of pairs that are token ids already
MARGIN = "margin"  # the column that TRL's RewardTrainer subtracts in its loss if it exists

_TEXTS = ("chosen", "rejected")
_LEFT_OUT = "_left_out"
_EMPTY, _NO_MARGIN = "empty_answers", "no_sound_margin"
IDENTICAL = "identical_answers"  # why a pair teaches nothing: both answers are the same
_SHOWN = 3


@dataclass(frozen=True)
class PairRules:
    """What makes a margin, and whether bad pairs are dropped or an error.

    The margin is a `column`, or `scale * transform(chosen - rejected)` of two score columns; without any of these
    columns, pairs have no margin. A bad pair has equal answers or an empty one.
    """

    column: str | None = None
    chosen: str | None = None
    rejected: str | None = None
    scale: float = 1.0
    transform: Literal["identity", "log1p", "rank"] = "identity"
    drops_bad_margins: bool = False
    drops_bad_pairs: bool = False

    @property
    def columns(self) -> list[str]:
        """Return the columns that make the margin; empty if there is none."""
        return [column for column in (self.column, self.chosen, self.rejected) if column is not None]


def check_pair_columns(columns: Sequence[str], rules: PairRules, *, name: str = "data") -> None:
    """Raise DataError unless these columns hold a pair and the columns of the margin."""
    for column in _TEXTS:
        if column not in columns and not set(IDS) <= set(columns):
            raise missing_column(column, columns, name)
    for column in rules.columns:
        if column not in columns:
            raise missing_column(column, columns, f"reward_model.margin, on {name}")


def judge_pairs(dataset: Dataset, rules: PairRules, *, name: str) -> Dataset:
    """Return all rows with their margin, if the rules have one, and with the reason why `leave_out` drops a row.

    Bad rows stay until the evaluation rows are held out, because dropping them earlier would change that split. Raise
    DataError for pairs that are equal, empty or without a valid margin, unless the rules drop them.
    """
    check_pair_columns(dataset.column_names, rules, name=name)
    bad, margins = sound_pairs(dataset, rules, name=name)
    replaced = {MARGIN, _LEFT_OUT}
    if set(IDS) <= set(dataset.column_names):  # like TRL, which ignores texts beside token ids
        replaced |= set(_TEXTS)
    dataset = dataset.remove_columns([column for column in dataset.column_names if column in replaced])
    if rules.columns:
        dataset = dataset.add_column(MARGIN, [margins.get(row, math.nan) for row in range(len(dataset))])
    judged: Dataset = dataset.add_column(_LEFT_OUT, [bad.get(row, "") for row in range(len(dataset))])
    return judged


def leave_out(dataset: Dataset, *, name: str) -> tuple[Dataset, dict[str, int]]:
    """Return the judged pairs without the bad ones, and reason -> number dropped. Raise DataError if none remains."""
    reasons = [str(reason) for reason in values_of(dataset, _LEFT_OUT)]
    dataset = dataset.remove_columns(_LEFT_OUT)
    kept = [row for row, reason in enumerate(reasons) if not reason]
    if not kept:
        raise no_pair_left(reasons, name=name)
    counts = dict(sorted(Counter(filter(None, reasons)).items()))
    return (dataset.select(kept) if counts else dataset), counts


def no_pair_left(reasons: Sequence[str], *, name: str) -> DataError:
    """Return the error for a dataset whose pairs were all dropped."""
    counts = sorted(Counter(filter(None, reasons)).items())
    got = ", ".join(f"{number} with {why.replace('_', ' ')}" for why, number in counts) or "0 rows"
    advice = "repair these rows: reward_model.on_bad_pair and margin.on_bad drop all of them"
    return DataError("every pair would be dropped", where=name, got=got, advice=advice)


def sound_pairs(dataset: Table, rules: PairRules, *, name: str = "data") -> tuple[dict[int, str], dict[int, float]]:
    """Return `(row -> reason to drop it, row -> margin of others)`. Raise DataError for bad pairs not dropped."""
    bad = bad_pairs(dataset)
    if bad and not rules.drops_bad_pairs:
        first = next(iter(bad))
        texts = (f"{column} {value!r:.60}" for column, value in dataset[first].items() if column in _TEXTS + IDS)
        got = f"row {first + 1}, {bad[first].replace('_', ' ')}: {', '.join(texts)}"
        what, where = f"{len(bad)} of {len(dataset)} pairs teach nothing", at_rows(name, *(row + 1 for row in bad))
        expected = "two different answers, neither of them empty"
        raise DataError(what, where=where, got=got, expected=expected, hint="reward_model.on_bad_pair=drop")
    if not rules.columns:
        return bad, {}
    scores = enumerate(zip(*(values_of(dataset, column) for column in rules.columns), strict=True))
    read = {row: _distance(values) for row, values in scores if row not in bad}
    distances = {row: distance for row, distance in read.items() if isinstance(distance, float)}
    wrong = {row: problem for row, problem in read.items() if isinstance(problem, str)}
    if wrong and not rules.drops_bad_margins:
        rows, columns = sorted(wrong), f"column{'s' if len(rules.columns) > 1 else ''} {' and '.join(rules.columns)}"
        what = f"the {columns} cannot be read as a margin in {len(wrong)} of {len(dataset)} pairs"
        where = at_rows(name, *(row + 1 for row in rows))
        got = "\n".join(f"row {row + 1}: {wrong[row]}" for row in rows[:_SHOWN])
        expected = "finite numbers: a margin of 0 or more, and a chosen score that is not below the rejected one"
        advice = "reward_model.margin.on_bad=drop drops and counts such pairs"
        raise DataError(what, where=where, got=got, expected=expected, advice=advice)
    return bad | dict.fromkeys(wrong, _NO_MARGIN), _margins(distances, rules)


def _distance(values: Sequence[object]) -> float | str:
    """Return a margin column's value, or the chosen score minus the rejected one; or what is wrong with them."""
    numbers = []
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return "nothing (null)" if value is None else f"{value!r:.40}, a {type(value).__name__}"
        if not math.isfinite(value):
            return f"{value}, not a finite number"
        numbers.append(float(value))
    distance = numbers[0] if len(numbers) == 1 else numbers[0] - numbers[1]
    if distance < 0:
        return f"{distance:g}, below 0" + ("" if len(numbers) == 1 else f", {values[0]} less {values[1]}")
    return distance


def _margins(distances: dict[int, float], rules: PairRules) -> dict[int, float]:
    """Return row -> margin: a column's d, else `scale` times d, log(1 + d) or the mean rank's share, in (0, 1]."""
    if rules.column is not None or not distances:
        return distances
    if rules.transform == "rank":
        from scipy.stats import rankdata

        shares = (rankdata(list(distances.values())) / len(distances)).tolist()
        return {row: rules.scale * share for row, share in zip(distances, shares, strict=True)}
    transform = math.log1p if rules.transform == "log1p" else float
    return {row: rules.scale * transform(distance) for row, distance in distances.items()}


def bad_pairs(dataset: Table) -> dict[int, str]:
    """Return row -> reason for pairs with equal answers or an empty one."""
    columns = IDS if set(IDS) <= set(dataset.column_names) else _TEXTS
    pairs = zip(*(values_of(dataset, column) for column in columns), strict=True)
    reasons: dict[int, str] = {}
    for row, (chosen, rejected) in enumerate(pairs):
        if _is_empty_answer(chosen) or _is_empty_answer(rejected):
            reasons[row] = _EMPTY
        elif chosen == rejected:
            reasons[row] = IDENTICAL
    return reasons


def _is_empty_answer(answer: object) -> bool:
    """Return whether an answer is an empty text or list of ids; of messages, check the last one."""
    if isinstance(answer, list) and answer and isinstance(answer[-1], dict):
        return is_empty(answer[-1].get("content")) and not answer[-1].get("tool_calls")
    return is_empty(answer)
