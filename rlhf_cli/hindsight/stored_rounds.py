"""Read the rounds of rollouts that a run stored in its completions tables.

A table holds the rows of all ranks in the trainer's order, with consecutive groups. Incomplete rounds are skipped with
a reason, for example a table that also contains an evaluation, or a truncated one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from rlhf_cli.errors import DataError, Prose
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.tables import rollout_columns

_TABLE = re.compile(r"^completions_(\d+)\.parquet$")
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
        ours = {*_TRLS, *rollout_columns.ALL, *rewards}
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
    files = {int(match[1]): file for file in run.path.glob("completions/*") if (match := _TABLE.match(file.name))}
    if not files:
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
    for _, file in sorted(files.items()):
        try:
            columns = _read(str(file))
            found = _round_of(columns)
        except DataError as problem:
            left_out.append(f"{file.name}: {problem.what}")
            continue
        rounds.setdefault(found.number, found)
    if not rounds:
        raise DataError(
            "none of this run's tables holds a whole round of training",
            where=f"{run.shown}/completions",
            got="\n".join(left_out[:5]) + (f"\nand {len(left_out) - 5} more" if len(left_out) > 5 else ""),
            expected="tables with the columns " + ", ".join(rollout_columns.ALL),
        )
    return StoredRounds(tuple(rounds[number] for number in sorted(rounds)), tuple(left_out))


def _read(file: str) -> Columns:
    # Imported here, so that a mistake in the words is reported without loading Arrow.
    import pyarrow
    from pyarrow import parquet

    try:
        columns: Columns = parquet.read_table(file).to_pydict()
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"it cannot be read ({str(error).splitlines()[0][:80]})") from None
    return columns


def _round_of(columns: Columns) -> StoredRound:
    missing = [name for name in rollout_columns.ALL if name not in columns]
    if missing:
        raise DataError(f"it has no column {missing[0]}: a version of rlhf without it has written it")
    numbers = set(columns[rollout_columns.ROUND])
    if numbers == {None} or not numbers:
        raise DataError("it holds the answers of an evaluation")
    if len(numbers) > 1:
        raise DataError("it holds rows of more than one round: an evaluation has written into it")
    (number,), (updates, *_) = numbers, columns[rollout_columns.STEP]
    assert isinstance(number, int | float)
    assert isinstance(updates, int)
    return StoredRound(int(number), updates, columns)
