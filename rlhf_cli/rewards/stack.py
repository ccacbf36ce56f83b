"""The reward stack: all named rewards of an experiment, evaluated together on a batch of completions.

TRL knows rewards as a list of functions that cannot see each other. The stack gives TRL one `Column` a reward; the
first column that TRL calls evaluates the whole stack, the others hand out what is there. So TRL assembles, gathers and
logs its matrix as ever, and what the rewards have to do with one another is decided here.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rlhf_cli.rewards.values import Score, as_scores


@dataclass(frozen=True)
class Component:
    """One named reward: what scores it and what its score weighs in the total."""

    name: str
    score: Callable[..., Any]
    weight: float


class RewardStack:
    """Evaluates every component once a batch. Order of the components is the order of the columns."""

    def __init__(self, components: list[Component]) -> None:
        self.components = components
        self._scores: dict[str, list[Score]] | None = None
        # One event loop for the stack's life: a client that a user keeps between calls is bound to its loop.
        self._runner = asyncio.Runner()

    @property
    def names(self) -> list[str]:
        return [component.name for component in self.components]

    @property
    def weights(self) -> list[float]:
        return [component.weight for component in self.components]

    def columns(self) -> list[Column]:
        """One callable of TRL's reward signature a component."""
        return [Column(component.name, self) for component in self.components]

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Within it the stack is evaluated once, whichever column is asked first."""
        self._scores = None
        try:
            yield
        finally:
            self._scores = None

    def scores(self, name: str, **batch: Any) -> list[Score]:
        """The scores of one component on a batch given as TRL's reward arguments."""
        if self._scores is None:
            self._scores = self.evaluate(**batch)
        return self._scores[name]

    def evaluate(self, **batch: Any) -> dict[str, list[Score]]:
        """Name -> one score a row. `batch` holds prompts, completions, completion_ids and the dataset's columns.

        Raises RewardError when a component returns anything but one number or None a row; what a component raises
        itself passes through.
        """
        num_rows = len(batch["completions"])
        returned: dict[str, Any] = {}
        waiting: dict[str, Any] = {}
        for component in self.components:
            value = component.score(**batch)
            (waiting if inspect.isawaitable(value) else returned)[component.name] = value
        if waiting:
            returned |= self._runner.run(_gather(waiting))
        return {name: as_scores(name, returned[name], num_rows) for name in self.names}

    def close(self) -> None:
        """End the event loop."""
        self._runner.close()


class Column:
    """One component as TRL sees it: a reward function. TRL takes the metric's name from `__name__`."""

    def __init__(self, name: str, stack: RewardStack) -> None:
        self.__name__ = name
        self._stack = stack

    def __call__(self, **batch: Any) -> list[Score]:
        return self._stack.scores(self.__name__, **batch)


async def _gather(waiting: dict[str, Any]) -> dict[str, Any]:
    values = await asyncio.gather(*waiting.values())
    return dict(zip(waiting, values, strict=True))
