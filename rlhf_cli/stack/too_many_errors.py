"""End a run whose reward fails too often: `on_error` is meant for occasional failures."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from rlhf_cli.errors import RewardFailed
from rlhf_cli.stack.component import Component, Outcome
from rlhf_cli.stack.failed_call import said_of_replay

_MAX_HOPELESS_BATCHES = 3
"""A reward that fails on every row of this many consecutive batches ends the run whatever its `on_error`."""


@dataclass(frozen=True)
class MaxErrors:
    """The share of a reward's last `window` computed rows that may fail."""

    share: float
    window: int


class ErrorCounts:
    """Count one reward's failures, ignoring rows that a gate skipped."""

    def __init__(self, limit: MaxErrors | None) -> None:
        self._limit = limit
        self._last: deque[bool] = deque(maxlen=limit.window if limit is not None else 0)
        self._hopeless = 0

    def add(self, component: Component, outcome: Outcome, *, replay: str | None = None) -> None:
        """Count a batch. Raise RewardFailed with the last error if too many rows failed.

        `replay` is a command that reproduces such a failure, or None.
        """
        num_errors = outcome.num_errors
        if outcome.calls:
            self._hopeless = self._hopeless + 1 if num_errors >= outcome.calls else 0
        if self._hopeless >= _MAX_HOPELESS_BATCHES:
            raise RewardFailed(
                f"reward {component.name!r} failed on every row of {_MAX_HOPELESS_BATCHES} batches in a row",
                where=f"rewards.{component.name}",
                got=next(error for error in outcome.errors if error is not None),
                expected=f"at least some scores; on_error={component.on_error} is for rows that fail now and then",
                hint=said_of_replay(replay),
            )
        limit = self._limit
        if limit is None:
            return
        asked = [component.eager or gate is None for gate in outcome.closed_by]
        self._last.extend(error is not None for error, is_asked in zip(outcome.errors, asked, strict=True) if is_asked)
        failed = sum(self._last)
        if num_errors and len(self._last) == limit.window and failed / limit.window > limit.share:
            raise RewardFailed(
                f"reward {component.name!r} failed on {failed} of the last {limit.window} rows",
                where=f"rewards.{component.name}",
                got=next(error for error in reversed(outcome.errors) if error is not None),
                expected=f"failures on {limit.share:.0%} of the rows at most, which guards.max_error_share allows",
                hint="\n".join(
                    line
                    for line in (
                        said_of_replay(replay),
                        "guards.max_error_share=1  # goes on; reward_errors.jsonl in the run folder has the rows",
                    )
                    if line is not None
                ),
            )
