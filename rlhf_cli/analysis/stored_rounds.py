"""Read back the rollouts and scores that a run stored.

A table holds the rows of all ranks in the trainer's order, with consecutive groups. Incomplete rounds are skipped with
a reason, for example a table that also contains an evaluation, or a truncated one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rlhf_cli.errors import DataError
from rlhf_cli.rewards.stack.component import by_row
from rlhf_cli.runs.metrics_file import tables_by_step
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.tables import trl_values
from rlhf_cli.text.regular_files import LARGEST_TABLE, require_regular

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
            advice="they are written with trainer.args.log_completions=true, and by trainers that sample completions",
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
            "no table of this run holds a whole round of training",
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
