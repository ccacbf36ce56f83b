"""Read back the rollouts and scores that a run stored.

A table holds the rows of all ranks in the trainer's order, with consecutive groups. Incomplete rounds are skipped with
a reason, for example a table that also contains an evaluation, or a truncated one.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rlhf_cli.errors import DataError, Prose, UserError
from rlhf_cli.rewards.stack.component import by_row
from rlhf_cli.rewards.stack.returned_scores import Score, as_scores
from rlhf_cli.rewards.stack.reward_functions import required_columns
from rlhf_cli.runs.metrics_file import tables_by_step
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.tables import trl_values

_TRLS = {"step", "prompt", "completion", "advantage", "total"}

Columns = dict[str, list[object]]


@dataclass(frozen=True)
class StoredRound:
    """One round of training: `columns` of the table by name, one entry per row.

    `number` counts the rounds from 0, `updates` are the optimizer steps before the round was sampled.
    """

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

    def numbers(self, column: str) -> list[float | None]:
        """Return a numeric column, None for a missing entry."""
        return [float(value) if isinstance(value, int | float) else None for value in self.columns[column]]

    def entry(self, column: str, row: int) -> float | None:
        """Return one entry of a numeric column, or None if the entry or the column is missing."""
        value = self.columns[column][row] if column in self.columns else None
        return float(value) if isinstance(value, int | float) else None

    def texts(self, column: str) -> list[str | None]:
        """Return a text column, None for a missing entry; all None if the table lacks the column."""
        values = self.columns.get(column, [None] * self.num_rows)
        return [None if value is None else str(value) for value in values]

    def dataset_columns(self, rewards: Sequence[str]) -> Columns:
        """Return the columns from the dataset; `rewards` are the names of the scored rewards."""
        ours = {*_TRLS, *trl_values.ALL, *rewards}
        prefixes = tuple(f"{name}." for name in rewards)
        return {name: rows for name, rows in self.columns.items() if name not in ours and not name.startswith(prefixes)}

    def environments(self, rewards: Sequence[str]) -> list[str]:
        """Return the rewards that environments gave: scored, logged, and not in `rewards`."""
        ends = ".effective"
        scored = [name.removesuffix(ends) for name in self.columns if name.endswith(ends)]
        return [name for name in scored if name in self.columns and name not in rewards]


@dataclass(frozen=True)
class StoredRounds:
    """The complete rounds of a run, in order; `left_out` has one message for each skipped table."""

    rounds: tuple[StoredRound, ...]
    left_out: tuple[str, ...]


def read_rounds(run: RunFolder) -> StoredRounds:
    """Return the stored rounds of a run. Raise DataError if no table contains a complete round."""
    tables = tables_by_step(run.path)
    if not tables:
        raise DataError(
            "this run has stored no completions",
            where=run.shown,
            expected="completions/completions_NNNNN.parquet, one a log event",
            hint=Prose(
                "they are written with trainer.args.log_completions=true, and by trainers that sample completions"
            ),
        )
    rounds: dict[int, StoredRound] = {}
    left_out: list[str] = []
    for _, file in tables:
        try:
            stored = _read_round(file)
            rounds.setdefault(stored.number, stored)
        except DataError as problem:
            left_out.append(f"{file.name}: {problem.what}")
    if not rounds:
        raise DataError(
            "none of this run's tables holds a whole round of training",
            where=f"{run.shown}/completions",
            got="\n".join(left_out[:5]) + (f"\nand {len(left_out) - 5} more" if len(left_out) > 5 else ""),
            expected="tables with the columns " + ", ".join(trl_values.ALL),
        )
    return StoredRounds(tuple(rounds[number] for number in sorted(rounds)), tuple(left_out))


def _read_round(file: Path) -> StoredRound:
    """Return the round in a table. Raise DataError if it cannot be read or does not hold exactly one round."""
    # Imported here, so that a mistake in the words is reported without loading Arrow.
    import pyarrow
    from pyarrow import parquet

    try:
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


_SAME = 1e-6
"""Tolerance for equal scores: those of environments and of older tables are rounded to float32."""


class StoredFailure(Exception):
    """A reward's failure on a row during the run; its text is the logged message."""


class StoredScores:
    """Return the scores of the run. `function` computes missing scores, or None to leave them unknown.

    The log has no score for a row with a closed gate, because the reward was not computed. `unknown` are the rows of
    the current round whose score is needed but missing; `problem` is why the function cannot be used. A function that
    computes some scores of a round must reproduce the stored ones: a random function, or one with inputs that are not
    stored, does not.
    """

    def __init__(self, name: str, function: Callable[..., object] | None, *, is_rescored: bool = False) -> None:
        self.name = name
        self.unknown: set[int] = set()
        self.problem: UserError | None = None
        self.num_computed = 0
        self._function, self._is_rescored = function, is_rescored
        self._scores: list[Score] = []
        self._errors: list[str | None] = []
        self._is_stored: list[bool] = []

    def begin(self, stored: StoredRound) -> None:
        """Switch to this round."""
        self.unknown = set()
        name, nothing = self.name, [False] * stored.num_rows
        if self._is_rescored or name not in stored.columns:
            self._scores, self._errors, self._is_stored = [None] * len(nothing), [None] * len(nothing), nothing
            return
        self._scores, self._errors = stored.numbers(name), stored.texts(f"{name}.error")
        self._is_stored = [closed is None for closed in stored.texts(f"{name}.closed_by")]

    def __call__(self, **batch: object) -> list[Score | BaseException]:
        """Return the scores of the rows in `whatif_row`; None if the reward did not apply or is unknown."""
        rows = [int(str(row)) for row in by_row(batch, ROW)]
        missing = [place for place, row in enumerate(rows) if not self._is_stored[row]]
        computed = self._computed(batch, rows, missing) if missing else {}
        scores: list[Score | BaseException] = []
        for place, row in enumerate(rows):
            if place in computed:
                scores.append(computed[place])
            elif (message := self._errors[row]) is not None:
                scores.append(StoredFailure(message))
            else:
                scores.append(self._scores[row])
        return scores

    def _computed(self, batch: dict[str, object], rows: Sequence[int], missing: Sequence[int]) -> dict[int, Score]:
        """Return place -> score for the missing places."""
        if self._function is None:
            self.unknown |= {rows[place] for place in missing}
            return dict.fromkeys(missing)
        if (problem := self._lacks(self._function, batch)) is not None:
            return self._cannot(problem, missing)
        stored = [place for place, row in enumerate(rows) if self._is_stored[row] and self._errors[row] is None]
        places = [*missing, *stored]
        scores = dict(zip(places, self._scored(self._function, batch, places), strict=True))
        for place in stored:
            was, now = self._scores[rows[place]], scores[place]
            if (was is None) != (now is None) or not math.isclose(was or 0.0, now or 0.0, rel_tol=_SAME, abs_tol=_SAME):
                problem = DataError(
                    f"the reward {self.name!r} does not give its stored scores again, so it cannot give the others",
                    where=f"rewards.{self.name}",
                    got=f"{now} for a completion that it gave {was} in the run",
                    expected="a function of the text and the columns alone, unchanged since the run",
                )
                return self._cannot(problem, missing)
        self.num_computed += len(missing)
        return {place: scores[place] for place in missing}

    def _cannot(self, problem: UserError, missing: Sequence[int]) -> dict[int, Score]:
        # Raised here, the error would count as a failure of the reward on a row.
        self.problem = problem
        return dict.fromkeys(missing)

    def _lacks(self, function: Callable[..., object], batch: dict[str, object]) -> UserError | None:
        lacking = [name for name in required_columns(function) if name not in batch]
        tokens = inspect.signature(function).parameters.get("completion_ids")
        lacking += ["completion_ids"] if tokens is not None and tokens.default is tokens.empty else []
        if not lacking:
            return None
        return DataError(
            f"the stored completions have no column {lacking[0]!r}",
            where=f"rewards.{self.name}",
            expected=f"{', '.join(lacking)}, which the reward reads",
        )

    def _scored(self, function: Callable[..., object], batch: dict[str, object], places: Sequence[int]) -> list[Score]:
        per_row = {name: value for name, value in batch.items() if isinstance(value, list) and name != ROW}
        shared = {name: value for name, value in batch.items() if name not in per_row and name != ROW}
        subset = {name: [values[place] for place in places] for name, values in per_row.items()}
        scores = as_scores(self.name, function(**shared, **subset), len(places), _refuse_dense)
        return [score if isinstance(score, float | None) else None for score in scores]


def _refuse_dense(row: int, value: Sequence[object]) -> None:
    raise ValueError("a value a token, which the stored completion has not")
