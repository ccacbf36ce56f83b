"""Check preference pairs before a reward model is trained on them.

TRL silently accepts an unwanted `margin` column, pairs of equal answers, and empty answers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from rlhf_cli.data.margins import MarginRule, distances, margins, refuse_margins
from rlhf_cli.data.row_table import Table
from rlhf_cli.data.rows import is_empty, numbered, values_of
from rlhf_cli.data.template import missing_column
from rlhf_cli.data.tokenised import IDS, is_tokenised, with_ids
from rlhf_cli.errors import DataError, Prose

if TYPE_CHECKING:
    import datasets

    Dataset: TypeAlias = datasets.Dataset

MARGIN = "margin"
"""The column that TRL's RewardTrainer subtracts in its loss if it exists."""

_TEXTS = ("chosen", "rejected")
_LEFT_OUT = "_left_out"
_IDENTICAL, _EMPTY, _NO_MARGIN = "identical_answers", "empty_answers", "no_sound_margin"


@dataclass(frozen=True)
class PreferenceRules:
    """The source of margins (None: no margin), and whether bad pairs are dropped.

    A bad pair has equal answers or an empty one; without `drops_bad_pairs` it is an error.
    """

    margin: MarginRule | None = None
    drops_bad_pairs: bool = False


def check_pair_columns(columns: Sequence[str], rules: PreferenceRules, *, name: str = "data") -> None:
    """Raise DataError unless these columns hold a pair and the columns of the margin."""
    if not is_tokenised(columns):
        for column in _TEXTS:
            if column not in columns:
                raise missing_column(column, columns, name)
    for column in rules.margin.columns if rules.margin is not None else ():
        if column not in columns:
            raise missing_column(column, columns, f"reward_model.margin, on {name}")


def judge_pairs(dataset: Dataset, rules: PreferenceRules, *, name: str = "data") -> Dataset:
    """Return all rows with TRL's column names, and a column with the reason why `leave_out` drops a row.

    Token ids get TRL's names. `margin` follows the rules and is removed if there are none. Bad rows stay until the
    evaluation rows are held out, because dropping them earlier would change that split. Raise DataError for pairs that
    are equal, empty or without a valid margin, unless the rules drop them.
    """
    check_pair_columns(dataset.column_names, rules, name=name)
    dataset = with_ids(dataset, name=name)
    if set(IDS) <= set(dataset.column_names):  # like TRL, which ignores texts beside token ids
        dataset = dataset.remove_columns([column for column in _TEXTS if column in dataset.column_names])
    bad, by_rule = sound_pairs(dataset, rules, name=name)
    dataset = dataset.remove_columns([column for column in (MARGIN, _LEFT_OUT) if column in dataset.column_names])
    if rules.margin is not None:
        dataset = dataset.add_column(MARGIN, [by_rule.get(row, math.nan) for row in range(len(dataset))])
    judged: Dataset = dataset.add_column(_LEFT_OUT, [bad.get(row, "") for row in range(len(dataset))])
    return judged


def sound_pairs(
    dataset: Table, rules: PreferenceRules, *, name: str = "data"
) -> tuple[dict[int, str], dict[int, float]]:
    """Return `(row -> reason to drop it, row -> margin of the other rows)`; no margins if the rules want none.

    Raise DataError for pairs that are equal, empty or without a valid margin, unless the rules drop them.
    """
    bad = bad_pairs(dataset)
    if bad and not rules.drops_bad_pairs:
        raise _refuse_pairs(bad, dataset, name)
    if rules.margin is None:
        return bad, {}
    from_rule, wrong = distances(dataset, rules.margin, name=name)
    wrong = {row: complaint for row, complaint in wrong.items() if row not in bad}
    if wrong and not rules.margin.drops:
        raise refuse_margins(wrong, rules.margin, len(dataset), name=name)
    bad |= dict.fromkeys(wrong, _NO_MARGIN)
    sound = [row for row in range(len(dataset)) if row not in bad]
    return bad, dict(zip(sound, margins([from_rule[row] for row in sound], rules.margin), strict=True))


def leave_out(dataset: Dataset, *, name: str = "data") -> tuple[Dataset, dict[str, int]]:
    """Return the judged pairs without the bad ones, and reason -> number of dropped pairs.

    Raise DataError if no pair remains.
    """
    reasons = [str(reason) for reason in values_of(dataset, _LEFT_OUT)]
    dataset = dataset.remove_columns(_LEFT_OUT)
    counts = _counted(reasons)
    kept = [row for row, reason in enumerate(reasons) if not reason]
    if not kept:
        raise no_pair_left(reasons, name=name)
    return (dataset.select(kept) if counts else dataset), counts


def no_pair_left(reasons: Sequence[str], *, name: str) -> DataError:
    """Return the error for a dataset whose pairs were all dropped."""
    counts = _counted(reasons)
    return DataError(
        "no pair is left to learn from",
        where=name,
        got=", ".join(f"{number} with {why.replace('_', ' ')}" for why, number in counts.items()) or "0 rows",
        hint=Prose(
            "mend these rows: reward_model.on_bad_pair and reward_model.margin.on_bad would leave out all of them"
        ),
    )


def _counted(reasons: Sequence[str]) -> dict[str, int]:
    return {why: reasons.count(why) for why in sorted(set(reasons) - {""})}


def bad_pairs(dataset: Table) -> dict[int, str]:
    """Return row -> reason for pairs with equal answers or an empty one."""
    columns = IDS if set(IDS) <= set(dataset.column_names) else _TEXTS
    pairs = zip(*(values_of(dataset, column) for column in columns), strict=True)
    reasons: dict[int, str] = {}
    for row, (chosen, rejected) in enumerate(pairs):
        if _says_nothing(chosen) or _says_nothing(rejected):
            reasons[row] = _EMPTY
        elif chosen == rejected:
            reasons[row] = _IDENTICAL
    return reasons


def _says_nothing(answer: object) -> bool:
    """Return whether an answer is an empty text or list of ids; of messages, check the last one."""
    if isinstance(answer, list) and answer and isinstance(answer[-1], dict):
        return is_empty(answer[-1].get("content")) and not answer[-1].get("tool_calls")
    return is_empty(answer)


def _refuse_pairs(bad: dict[int, str], dataset: Table, name: str) -> DataError:
    rows = {why: [row + 1 for row in bad if bad[row] == why] for why in (_IDENTICAL, _EMPTY)}
    first = next(iter(bad))
    row = dataset[first]
    shown = {column: row[column] for column in (*_TEXTS, *IDS) if column in row}
    return DataError(
        f"{len(bad)} of {len(dataset)} pairs teach nothing",
        where=f"{name}, {numbered([row + 1 for row in bad])} (the first row is 1)",
        got="\n".join(
            [f"{why.replace('_', ' ')}: {numbered(numbers)}" for why, numbers in rows.items() if numbers]
            + [f"row {first + 1}: " + ", ".join(f"{column} {value!r:.60}" for column, value in shown.items())]
        ),
        expected="two answers that differ, both with something in them",
        hint="reward_model.on_bad_pair=drop",
    )
