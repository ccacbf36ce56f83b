"""Stand in for a reward function with the scores that a run has stored, so that the reward stack settles them again."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence

from rlhf_cli.errors import DataError
from rlhf_cli.hindsight.stored_rounds import StoredRound
from rlhf_cli.stack.returned_scores import Score, as_scores
from rlhf_cli.stack.reward_batch import by_row
from rlhf_cli.stack.reward_functions import required_columns

ROW = "hindsight_row"
"""The argument that says which row of its round a completion is."""


class StoredFailure(Exception):
    """Stand for a row that the reward failed on in the run; its text is what was logged."""


class StoredScores:
    """Answer as the reward did when the run asked it. `function` computes what the run has not, None for nobody does.

    A closed gate keeps a reward from being computed: the log has no score for such a row. `unknown` are the rows of
    the round at hand that were asked for in vain.
    """

    def __init__(self, name: str, function: Callable[..., object] | None, *, is_rescored: bool = False) -> None:
        self.name = name
        self.unknown: set[int] = set()
        self.num_computed = 0
        self._function, self._is_rescored = function, is_rescored
        self._scores: list[Score] = []
        self._errors: list[str | None] = []
        self._is_stored: list[bool] = []

    def begin(self, stored: StoredRound) -> None:
        """Answer from now on of this round."""
        self.unknown = set()
        name, nothing = self.name, [False] * stored.num_rows
        if self._is_rescored or name not in stored.columns:
            self._scores, self._errors, self._is_stored = [None] * len(nothing), [None] * len(nothing), nothing
            return
        self._scores, self._errors = stored.numbers(name), stored.texts(f"{name}.error")
        self._is_stored = [closed is None for closed in stored.texts(f"{name}.closed_by")]

    def __call__(self, **batch: object) -> list[Score | BaseException]:
        """Return the scores of the rows that `hindsight_row` names; None where the reward did not apply or none is
        known.
        """
        rows = [int(str(row)) for row in by_row(batch, ROW)]
        missing = [place for place, row in enumerate(rows) if not self._is_stored[row]]
        computed = dict(zip(missing, self._computed(batch, missing), strict=True)) if missing else {}
        scores: list[Score | BaseException] = []
        for place, row in enumerate(rows):
            if place in computed:
                scores.append(computed[place])
            elif (message := self._errors[row]) is not None:
                scores.append(StoredFailure(message))
            else:
                scores.append(self._scores[row])
        return scores

    def _computed(self, batch: dict[str, object], places: Sequence[int]) -> list[Score]:
        if self._function is None:
            rows = by_row(batch, ROW)
            self.unknown |= {int(str(rows[place])) for place in places}
            return [None] * len(places)
        lacking = [name for name in required_columns(self._function) if name not in batch]
        lacking += [name for name in inspect.signature(self._function).parameters if name == "completion_ids"]
        if lacking:
            raise DataError(
                f"the stored completions have no column {lacking[0]!r}",
                where=f"rewards.{self.name}",
                expected=f"{', '.join(lacking)}, which the reward reads",
            )
        self.num_computed += len(places)
        per_row = {name: value for name, value in batch.items() if isinstance(value, list) and name != ROW}
        shared = {name: value for name, value in batch.items() if name not in per_row and name != ROW}
        subset = {name: [values[place] for place in places] for name, values in per_row.items()}
        scores = as_scores(self.name, self._function(**shared, **subset), len(places), _refuse_dense)
        return [score if isinstance(score, float | None) else None for score in scores]


def _refuse_dense(row: int, value: Sequence[object]) -> None:
    raise ValueError("a value a token, which the stored completion has not")
