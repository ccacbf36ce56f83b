"""Convert a reward function's result to one form: a float, None, or one value per token for each row."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from rlhf_cli.errors import RewardError
from rlhf_cli.stack.token_values import TokenValues

LARGEST = 3.4028234663852886e38
"""The largest float32: anything above would be infinite in TRL's reward matrix."""

Score = float | None
"""One row's reward; None if the reward does not apply to the row."""


_PLAIN = {float, bool, type(None)}


class PlainScores(list[float | None]):
    """Scores that are all floats or None, without dense values or failures."""


ReadDense = Callable[[int, Sequence[object]], TokenValues | None]
"""(row, its result) -> one value per token, or None if it is not dense. Raise ValueError for an invalid result."""


def as_scores(
    name: str, returned: object, num_rows: int, read_dense: ReadDense | None = None
) -> Sequence[Score | TokenValues | BaseException]:
    """Return `returned` as a list of `num_rows` floats or Nones; a dense row becomes a list of token values.

    Accept a list, a tuple, a numpy array or a tensor. A bool counts as 0 or 1, None means that the reward does not
    apply, and an exception, kept as it is, marks a failed row. Raise RewardError, naming the reward and the row, for
    anything else: a wrong length, a text, a dict, NaN, an infinite number.
    """
    if hasattr(returned, "tolist"):
        returned = returned.tolist()
    if isinstance(returned, str | bytes | dict) or not isinstance(returned, Sequence):
        raise RewardError(
            f"reward {name!r} did not return a list",
            where=f"rewards.{name}",
            got=f"{type(returned).__name__}: {returned!r:.80}",
            expected=f"a list of {num_rows} numbers, one a completion; None where the reward does not apply",
        )
    if len(returned) != num_rows:
        raise RewardError(
            f"reward {name!r} returned {len(returned)} values for {num_rows} completions",
            where=f"rewards.{name}",
            got=f"{list(returned)!r:.80}",
            expected=f"a list of {num_rows} numbers, one a completion; None where the reward does not apply",
        )
    kinds = set(map(type, returned))
    if kinds == {float} and math.isfinite(sum(returned)) and max(map(abs, returned)) <= LARGEST:
        return PlainScores(returned)  # the usual case; NaN and infinity always show in the sum
    if kinds <= _PLAIN:
        scores = [None if value is None else float(value) for value in returned]
        if all(score is None or abs(score) <= LARGEST for score in scores):
            return PlainScores(scores)
    return [_as_score(name, row, value, read_dense) for row, value in enumerate(returned)]


def _as_score(name: str, row: int, value: object, read_dense: ReadDense | None) -> Score | TokenValues | BaseException:
    if value is None or isinstance(value, BaseException):
        return value
    if hasattr(value, "tolist"):
        value = value.tolist()
    elif hasattr(value, "item"):
        value = value.item()
    if isinstance(value, list | tuple) and read_dense is not None:
        try:
            tokens = read_dense(row, value)
        except ValueError as error:
            wanted = "a list of numbers, one a completion token, or of spans (start, end, value) in characters"
            raise _refused(name, row, "value a token", str(error), wanted) from error
        if tokens is not None:
            return tokens
    if not isinstance(value, int | float):
        problem = f"{type(value).__name__}: {value!r:.80}"
    elif not abs(value) <= LARGEST:  # NaN compares as false
        problem = f"{value!r:.80}"
    else:
        return float(value)
    raise _refused(name, row, "number", problem, "a finite number, or None where the reward does not apply")


def _refused(name: str, row: int, what: str, got: str, expected: str) -> RewardError:
    error = RewardError(
        f"reward {name!r} returned no {what} for row {row}", where=f"rewards.{name}", got=got, expected=expected
    )
    error.row = row
    return error
