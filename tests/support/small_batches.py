"""A batch of two rows, and a reward that remembers with what it was asked."""

from __future__ import annotations

from typing import Any

BATCH: dict[str, Any] = {"prompts": ["p", "p"], "completions": ["a", "bb"], "completion_ids": [[1], [2, 3]]}


class Counting:
    """A reward that remembers with what it was asked."""

    def __init__(self, *scores: Any) -> None:
        self.scores = list(scores)
        self.calls: list[dict[str, Any]] = []

    def __call__(self, **batch: Any) -> list[Any]:
        self.calls.append(batch)
        return self.scores
