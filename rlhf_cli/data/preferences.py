"""Read preference pairs: token ids, margins, and what is wrong with them.

Llama 2 (arXiv 2307.09288, 3.2.2) puts a margin into the loss, -log sigmoid(r_chosen - r_rejected - margin), so that the
scores of a clearly better answer are pushed further apart.

TRL 1.16 trains on `chosen_ids` and `rejected_ids` without padding. The format of before 2025 has `input_ids_chosen`,
`attention_mask_chosen`, `input_ids_rejected` and `attention_mask_rejected`, padded or not.

TRL silently accepts an unwanted `margin` column, pairs of equal answers, and empty answers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from rlhf_cli.data.rows import Table, is_empty, numbered, values_of
from rlhf_cli.data.template import missing_column
from rlhf_cli.errors import DataError, Prose

if TYPE_CHECKING:
    import datasets

    Dataset: TypeAlias = datasets.Dataset

_SHOWN = 3


@dataclass(frozen=True)
class MarginRule:
    """The source of margins: a `column`, or the score columns `chosen` and `rejected`.

    The margin of two scores is `scale * transform(chosen - rejected)`. `drops`: drop pairs without a valid margin
    instead of raising an error. Unused fields are None.
    """

    column: str | None = None
    chosen: str | None = None
    rejected: str | None = None
    scale: float = 1.0
    transform: Literal["identity", "log1p", "rank"] = "identity"
    drops: bool = False

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the columns that the rule reads."""
        return tuple(column for column in (self.column, self.chosen, self.rejected) if column is not None)


def distances(dataset: Table, rule: MarginRule, *, name: str = "data") -> tuple[list[float], dict[int, str]]:
    """Return `(distances, row index -> problem)`; an invalid distance is NaN.

    A distance is the value of `column`, or the chosen score minus the rejected one. Raise DataError if a column is
    missing.
    """
    _check_margin_columns(dataset.column_names, rule, name)
    found: list[float] = []
    wrong: dict[int, str] = {}
    read = [values_of(dataset, column) for column in rule.columns]
    for index, values in enumerate(zip(*read, strict=True)):
        complaint = next(filter(None, map(_complaint, values)), None)
        distance = math.nan
        if complaint is None:
            numbers = [float(value) for value in values]
            distance = numbers[0] if len(numbers) == 1 else numbers[0] - numbers[1]
            if distance < 0:
                complaint = f"{distance:g}, below 0" + ("" if len(numbers) == 1 else f", {values[0]} less {values[1]}")
        if complaint is not None:
            wrong[index], distance = complaint, math.nan
        found.append(distance)
    return found, wrong


def _check_margin_columns(columns: Sequence[str], rule: MarginRule, name: str) -> None:
    for column in rule.columns:
        if column not in columns:
            raise missing_column(column, columns, f"reward_model.margin, on {name}")


def _complaint(value: object) -> str | None:
    """Return the problem with a number, or None."""
    if value is None:
        return "nothing (null)"
    if isinstance(value, str):
        return f"{value!r:.40}, text"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return f"{value!r:.40}, a {type(value).__name__}"
    return None if math.isfinite(value) else f"{value}, no finite number"


def refuse_margins(wrong: dict[int, str], rule: MarginRule, num_rows: int, *, name: str = "data") -> DataError:
    """Return the error for rows without a valid margin: the rows, their values and a hint."""
    rows = sorted(wrong)
    quotes = "numbers are written without quotes; " if "text" in wrong[rows[0]] else ""
    columns = f"column{'s' if len(rule.columns) > 1 else ''} {' and '.join(rule.columns)}"
    return DataError(
        f"no margin can be had from the {columns} for {len(wrong)} of {num_rows} pairs",
        where=f"{name}, {numbered([row + 1 for row in rows])} (the first row is 1)",
        got="\n".join(f"row {row + 1}: {wrong[row]}" for row in rows[:_SHOWN]),
        expected="a finite number of 0 or more"
        if rule.column is not None
        else "two finite numbers, the chosen answer's not the smaller",
        hint=Prose(f"{quotes}reward_model.margin.on_bad=drop leaves such pairs out and counts them"),
    )


def margins(sound: Sequence[float], rule: MarginRule) -> list[float]:
    """Return the margins of valid `distances`.

    `identity` is the distance d, `log1p` is log(1 + d), and `rank` is the rank of d in ascending order divided by the
    number of distances: in (0, 1], with the mean rank for ties.
    """
    if rule.column is not None:
        return list(sound)
    if rule.transform == "log1p":
        return [rule.scale * math.log1p(distance) for distance in sound]
    if rule.transform == "identity":
        return [rule.scale * distance for distance in sound]
    places: dict[float, list[int]] = {}
    for place, value in enumerate(sorted(sound), 1):
        places.setdefault(value, []).append(place)
    shares = {value: sum(of) / len(of) / len(sound) for value, of in places.items()}
    return [rule.scale * shares[value] for value in sound]


IDS = ("chosen_ids", "rejected_ids")
_FORMER = {name: (f"input_ids_{name}", f"attention_mask_{name}") for name in ("chosen", "rejected")}
"""Answer -> its token ids and their mask in the format of before 2025."""


def is_tokenised(columns: Sequence[str]) -> bool:
    """Return whether these columns hold pairs of token ids, under current or former names."""
    return set(IDS) <= set(columns) or _has_former(columns)


def _has_former(columns: Sequence[str]) -> bool:
    return all(ids in columns for ids, _ in _FORMER.values())


def with_ids(dataset: Dataset, *, name: str = "data") -> Dataset:
    """Return the dataset with `chosen_ids` and `rejected_ids` instead of a former format's columns.

    Other columns stay. Raise DataError if an attention mask masks more than padding at one end.
    """
    if not _has_former(dataset.column_names) or set(IDS) <= set(dataset.column_names):
        return dataset
    former = [column for pair in _FORMER.values() for column in pair if column in dataset.column_names]
    renamed: Dataset = dataset.map(_cut_row, with_indices=True, remove_columns=former, fn_kwargs={"name": name})
    return renamed


def _cut_row(row: Mapping[str, object], index: int, name: str) -> dict[str, list[int]]:
    return {
        f"{answer}_ids": cut_padding(
            row[ids], row.get(mask), f"{name}, row {index + 1}, column {ids} (the first row is 1)"
        )
        for answer, (ids, mask) in _FORMER.items()
    }


def cut_padding(ids: object, mask: object, where: str) -> list[int]:
    """Return the ids that `mask` (None: all ones) keeps. Raise DataError unless they are contiguous."""
    if not isinstance(ids, list) or not all(isinstance(token, int) for token in ids):
        raise DataError("not a list of token ids", where=where, got=f"{ids!r:.80}")
    if mask is None:
        return ids
    if not isinstance(mask, list) or len(mask) != len(ids) or not set(mask) <= {0, 1}:
        got = f"{len(ids)} ids, mask {mask!r:.80}"
        raise DataError("the attention mask is not one 0 or 1 a token id", where=where, got=got)
    kept = [place for place, bit in enumerate(mask) if bit]
    if kept and len(kept) != kept[-1] - kept[0] + 1:
        raise DataError(
            "the attention mask leaves out tokens in the middle",
            where=where,
            got=f"mask {mask!r:.80}",
            expected="zeros for padding at one end: TRL attends to every token of an answer",
            hint=Prose("drop such rows, or the tokens themselves"),
        )
    return [ids[place] for place in kept]


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
    for column in _TEXTS:
        if column not in columns and not is_tokenised(columns):
            raise missing_column(column, columns, name)
    if rules.margin is not None:
        _check_margin_columns(columns, rules.margin, name)


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
    dropped = (f"{number} with {why.replace('_', ' ')}" for why, number in _counted(reasons).items())
    hint = "mend these rows: reward_model.on_bad_pair and reward_model.margin.on_bad would leave out all of them"
    return DataError("no pair is left to learn from", where=name, got=", ".join(dropped) or "0 rows", hint=Prose(hint))


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
    first = next(iter(bad))
    shown = ", ".join(f"{column} {value!r:.60}" for column, value in dataset[first].items() if column in _TEXTS + IDS)
    rows = {why: [row + 1 for row in bad if bad[row] == why] for why in (_IDENTICAL, _EMPTY)}
    lines = [f"{why.replace('_', ' ')}: {numbered(numbers)}" for why, numbers in rows.items() if numbers]
    return DataError(
        f"{len(bad)} of {len(dataset)} pairs teach nothing",
        where=f"{name}, {numbered([row + 1 for row in bad])} (the first row is 1)",
        got="\n".join([*lines, f"row {first + 1}: {shown}"]),
        expected="two answers that differ, both with something in them",
        hint="reward_model.on_bad_pair=drop",
    )
