"""Keep the rows of a source whose column lies in a range, and sort them by a column: a curriculum, a pass rate."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rlhf_cli.data.rows import Table, numbered, values_of
from rlhf_cli.data.source import missing_column
from rlhf_cli.errors import DataError

if TYPE_CHECKING:
    from rlhf_cli.data.source import DataSource


def kept_and_sorted(table: Table, source: DataSource) -> Table:
    """Return the rows that `keep` of a source selects, in the order of its `sort`; equal rows stay in order.

    Raise DataError for a column that does not exist, for values that have no order, or if no row is left.
    """
    if source.keep is not None:
        column, low, high = source.keep
        values = _numbers(table, column, f"{source.name}.keep.column")
        places = [place for place, value in enumerate(values) if value is not None and low <= value <= high]
        if not places:
            known = [value for value in values if value is not None]
            raise DataError(
                f"no row has {column} between {low:g} and {high:g}",
                where=f"{source.name}.keep.between",
                got=f"{min(known):g} to {max(known):g} in {len(values)} rows" if known else "nothing (null)",
                expected="a range with some rows",
            )
        table = table.select(places)
    if source.sort is not None:
        column, falls = source.sort.removeprefix("-"), source.sort.startswith("-")
        where = f"{source.name}.sort"
        numbers = _numbers(table, column, where)
        if missing := [place + 1 for place, value in enumerate(numbers) if value is None]:
            where += f", {numbered(missing)} (the first row is 1)"
            raise DataError(f"rows cannot be sorted by {column!r}", where=where, got="nothing (null)")
        ordered = {place: value for place, value in enumerate(numbers) if value is not None}
        table = table.select(sorted(ordered, key=lambda place: -ordered[place] if falls else ordered[place]))
    return table


def _numbers(table: Table, column: str, where: str) -> list[float | None]:
    """Return a column of numbers, None for null and NaN. Raise DataError for a column of anything else."""
    if column not in table.column_names:
        error = missing_column(column, table.column_names, where)
        if error.hint is not None:
            error.hint = f"{where}={error.hint}"
        raise error
    numbers: list[float | None] = []
    for place, value in enumerate(values_of(table, column), 1):
        if value is not None and not isinstance(value, int | float):
            got = f"{value!r:.40} in row {place} (the first row is 1)"
            raise DataError(f"the column {column!r} holds no numbers", where=where, got=got, expected="numbers")
        numbers.append(None if value is None or math.isnan(value) else float(value))
    return numbers
