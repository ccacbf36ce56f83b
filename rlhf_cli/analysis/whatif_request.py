"""Read a what-if question about a run, and the rollouts and scores that the run stored.

A question has alternatives; it says which keys would differ, and whether the log can answer. A table of rollouts holds
the rows of all ranks in the trainer's order, with consecutive groups. Incomplete rounds are skipped with a reason, for
example a table that also contains an evaluation, or a truncated one.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from rlhf_cli.analysis.comparison.logged_run import flat
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.errors import ConfigError, DataError, RunError, UserError, raise_any
from rlhf_cli.plan.prepare import prepare_from
from rlhf_cli.rewards.stack.component import by_row
from rlhf_cli.runs.metrics_file import tables_by_step
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.tables import trl_values
from rlhf_cli.tables.resume_keys import whatif_effect
from rlhf_cli.text.json_values import JsonValue
from rlhf_cli.text.regular_files import LARGEST_TABLE, require_regular
from rlhf_cli.text.suggest import nearest

_MADE = re.compile(r"^\+*(?:reward@)?rewards\.(\w+)(?:=|\.(?:fn|model)=)")
"""Matches an override that creates a reward of that name."""
_SCORE = "rlhf score +exp=NAME --completions RUN"


@dataclass(frozen=True)
class KeyChange:
    """A key with its old and new value; None means no value."""

    key: str
    old: JsonValue
    new: JsonValue


@dataclass(frozen=True)
class WhatIfQuestion:
    """The old and the new experiment; `words` are those typed."""

    words: tuple[str, ...]
    old: Experiment
    new: Experiment
    changes: tuple[KeyChange, ...]


def alternatives(words: list[str]) -> list[list[str]]:
    """Return every combination of the words' values, typed as for `rlhf train -m`. Raise ConfigError beyond 50."""
    combinations = [list(chosen) for chosen in itertools.product(*map(_values, words))]
    if len(combinations) > 50:
        what, got = "these are too many alternatives for a table", f"{len(combinations)} combinations"
        advice = "give fewer values per word"
        raise ConfigError(what, where="command line", got=got, expected="at most 50", advice=advice)
    return combinations


def _values(word: str) -> list[str]:
    try:
        (override,) = OverridesParser.create().parse_overrides([word])
    except HydraException:
        return [word]  # composing the configuration reports the error
    if not override.is_sweep_override():
        return [word]
    return [f"{word.partition('=')[0]}={value}" for value in override.sweep_string_iterator()]


def ask(run: RunFolder, words: list[str]) -> WhatIfQuestion:
    """Return the question that `words` ask about `run`.

    Raise RunError if the run has no rollouts, and ConfigError or Problems if the words do not change how completions
    are scored, or change anything else.
    """
    old = prepare_from(run, []).experiment
    row = old.trainer.row
    if not row.generates:
        what, expected = "this run has no rollouts to settle again", "a run of GRPO, RLOO or PPO"
        got = f"{row.name}, which learns from rows that are given"
        raise RunError(what, where=run.shown, got=got, expected=expected, hint="rlhf list trainer")
    # A setting of an unknown reward would otherwise be reported as lacking a function.
    made = {found[1] for word in words if (found := _MADE.match(word))}
    for word in words:
        named = re.match(r"^\+*rewards\.(\w+)\.", word)
        if named and named[1] not in {*made, *old.rewards}:
            close = nearest(named[1], old.rewards)
            what, expected = f"the run has no reward {named[1]!r}", "one of " + ", ".join(old.rewards)
            hint = word.replace(named[1], close, 1) if close else _SCORE
            raise ConfigError(what, where="command line", got=word, expected=expected, hint=hint)
    new = prepare_from(run, words).experiment
    changes = tuple(change for change in _changes(old, new) if whatif_effect(change.key) != "ignored")
    if not changes:
        weights = ((name, reward.weight) for name, reward in old.rewards.items())
        weighty = ((name, weight) for name, weight in weights if isinstance(weight, float) and weight)
        what, got = "nothing would have been different", " ".join(words) or "no word"
        expected = "another weight, gate, clip, offset, normalize, aggregate, advantages or truncation"
        hint = next((f"rewards.{name}.weight={2 * weight:g}" for name, weight in weighty), _SCORE)
        raise ConfigError(what, where="command line", got=got, expected=expected, hint=hint)
    raise_any(problem for change in changes if (problem := _problem(change, old)) is not None)
    return WhatIfQuestion(tuple(words), old, new, changes)


def _problem(change: KeyChange, old: Experiment) -> UserError | None:
    """Return why the log cannot answer for this change, or None if it can."""
    name = change.key.split(".")[1] if change.key.startswith("rewards.") else ""
    is_new = bool(name) and name not in old.rewards
    if whatif_effect(change.key) == "settles" and not is_new:
        return None
    if not is_new and whatif_effect(change.key) is None:
        what = "this decides what is sampled or learned, not what a stored completion is worth"
        expected = "rewards.NAME.weight, gate, offset, clip, normalize, on_error; aggregate, advantages, primary,"
        expected += " truncation; trainer.args.scale_rewards, normalize_advantages, reward_clip_range"
        got, advice = f"{change.old} -> {change.new}", "rlhf train asks it of a training"
        return ConfigError(what, where=change.key, got=got, expected=expected, advice=advice)
    if is_new:
        what, got = f"the run has scored no reward {name!r}", "rewards " + ", ".join(old.rewards)
        return ConfigError(what, where=change.key, got=got, expected="one that it has scored", hint=_SCORE)
    what, got = f"the run has not scored {name!r} like this", f"{change.old} -> {change.new}"
    return ConfigError(what, where=change.key, got=got, hint=_SCORE)


def _changes(old: Experiment, new: Experiment) -> Iterator[KeyChange]:
    # a gate is one value
    before, after = (dict(flat(side.model_dump(mode="json"), whole_with="by")) for side in (old, new))
    gone = {f"rewards.{name}" for name in set(old.rewards) - set(new.rewards)}
    come = {f"rewards.{name}" for name in set(new.rewards) - set(old.rewards)}
    yield from (KeyChange(key, "there", None) for key in sorted(gone))
    yield from (KeyChange(key, None, "there") for key in sorted(come))
    whole = tuple(f"{key}." for key in gone | come)
    for key in dict.fromkeys([*before, *after]):
        sides = before.get(key), after.get(key)
        is_said = all(side in (None, {}) for side in sides)  # of `args` that end or begin, each one is a key itself
        if not key.startswith(whole or ("\0",)) and sides[0] != sides[1] and not is_said:
            yield KeyChange(key, *sides)


Columns = dict[str, list[object]]


@dataclass(frozen=True)
class StoredRound:
    """One round of training, its columns, and the optimizer steps (`updates`) before it was sampled."""

    number: int
    updates: int
    columns: Columns

    @property
    def num_rows(self) -> int:
        """Return the number of completions."""
        return len(self.columns["completion"])

    @property
    def step(self) -> int:
        """Return the first optimizer step that learnt from it, counted from 1 as in metrics.jsonl."""
        return self.updates + 1

    @property
    def kept(self) -> list[bool]:
        """Return which rows were trained on: `sampling.keep_groups` stores all draws, each as long as the round."""
        return [value is not False for value in self.columns.get(trl_values.KEPT, [True] * self.num_rows)]

    def numbers(self, column: str) -> list[float | None]:
        """Return a numeric column, None for a missing entry."""
        return [float(value) if isinstance(value, int | float) else None for value in self.columns[column]]

    def texts(self, column: str) -> list[str | None]:
        """Return a text column, None for a missing entry; all None if the table lacks the column."""
        values = self.columns.get(column, [None] * self.num_rows)
        return [None if value is None else str(value) for value in values]


@dataclass(frozen=True)
class StoredRounds:
    """The complete rounds of a run, in order; `left_out` has one message for each skipped table."""

    rounds: tuple[StoredRound, ...]
    left_out: tuple[str, ...]


def read_rounds(run: RunFolder) -> StoredRounds:
    """Return the stored rounds of a run. Raise DataError if no table contains a complete round."""
    tables = tables_by_step(run.path)
    if not tables:
        what, expected = "this run has stored no completions", "completions/completions_NNNNN.parquet, one a log event"
        advice = "they are written with trainer.args.log_completions=true, and by trainers that sample completions"
        raise DataError(what, where=run.shown, expected=expected, advice=advice)
    rounds: dict[int, StoredRound] = {}
    left_out: list[str] = []
    for _, file in tables:
        try:
            stored = _read_round(file)
            rounds.setdefault(stored.number, stored)
        except DataError as problem:
            left_out.append(f"{file.name}: {problem.what}")
    if not rounds:
        got = "\n".join(left_out[:5]) + (f"\nand {len(left_out) - 5} more" if len(left_out) > 5 else "")
        what, columns = "no table of this run holds a whole round of training", ", ".join(trl_values.ALL)
        raise DataError(what, where=f"{run.shown}/completions", got=got, expected=f"tables with the columns {columns}")
    return StoredRounds(tuple(rounds[number] for number in sorted(rounds)), tuple(left_out))


def _read_round(file: Path) -> StoredRound:
    """Return the round in a table. Raise DataError if it cannot be read or does not hold exactly one round."""
    # Imported here, so that a mistake in the words is reported without loading Arrow.
    import pyarrow
    from pyarrow import parquet

    try:
        require_regular(file, LARGEST_TABLE)
        columns: Columns = parquet.read_table(file).to_pydict()
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"it cannot be read ({str(error).splitlines()[0][:80]})") from None
    missing = [name for name in trl_values.ALL if name not in columns]
    if missing:
        raise DataError(f"it has no column {missing[0]}: a version of rlhf without it has written it")
    numbers = set(columns[trl_values.ROUND])
    if numbers == {None} or not numbers:
        raise DataError("it holds the answers of an evaluation")
    if len(numbers) > 1:
        raise DataError("it holds rows of more than one round: an evaluation has written into it")
    (number,), (updates, *_) = numbers, columns[trl_values.STEP]
    assert isinstance(number, int | float)
    assert isinstance(updates, int)
    return StoredRound(int(number), updates, columns)


ROW = "whatif_row"
"""The argument with the index of a completion's row in its round."""


class StoredFailure(Exception):
    """A reward's failure on a row during the run; its text is the logged message."""


class StoredScores:
    """Stands in for a reward function and returns the scores that the run stored.

    `unknown` are the rows of the current round without a score in the log, such as those of a closed gate.
    """

    _stored: StoredRound

    def __init__(self, name: str) -> None:
        self.name = name
        self.unknown: set[int] = set()

    def begin(self, stored: StoredRound) -> None:
        """Switch to this round."""
        self.unknown, self._stored = set(), stored

    def __call__(self, **batch: object) -> list[float | BaseException | None]:
        """Return the scores of the rows in `whatif_row`; None if the reward did not apply or is unknown."""
        stored, rows = self._stored, [int(str(row)) for row in by_row(batch, ROW)]
        closed_by, errors = (stored.texts(f"{self.name}.{what}") for what in ("closed_by", "error"))
        is_stored = self.name in stored.columns
        found = stored.numbers(self.name) if is_stored else [None] * stored.num_rows
        self.unknown |= {row for row in rows if closed_by[row] is not None or not is_stored}
        return [found[row] if (message := errors[row]) is None else StoredFailure(message) for row in rows]
