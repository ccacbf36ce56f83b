"""Replace a reward function with the scores that a run has stored, so that the reward stack settles them again."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence

from rlhf_cli.errors import DataError, UserError
from rlhf_cli.hindsight.stored_rounds import StoredRound
from rlhf_cli.stack.returned_scores import Score, as_scores
from rlhf_cli.stack.reward_batch import by_row
from rlhf_cli.stack.reward_functions import required_columns

ROW = "hindsight_row"
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
        """Return the scores of the rows in `hindsight_row`; None if the reward did not apply or is unknown."""
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
