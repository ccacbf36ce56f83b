"""Warn once if nearly all completions are truncated, or all are empty."""

from __future__ import annotations

import logging
from typing import Any

from rich.text import Text
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from rlhf_cli.screen.training_bar import TrainingBar

_LOGS = 3
_NEARLY_ALL = 0.95
_log = logging.getLogger("rlhf")


class WatchCompletionEnds(TrainerCallback):
    """A callback that warns, on the terminal and in log.txt, about truncated or empty completions.

    It warns if in three consecutive logs at least 95 % of the completions were truncated, or no completion had more
    than one token (EOS). Each warning is given once. `limit` is TRL's max_completion_length, in tokens. Use it in the
    main process only.
    """

    def __init__(self, bar: TrainingBar, limit: int | None) -> None:
        self._bar = bar
        self._limit = limit
        self._cut_off: list[float] = []
        self._num_empty = 0

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **_: Any,
    ) -> None:
        """Count, and warn after three consecutive logs."""
        share, longest = (logs or {}).get("completions/clipped_ratio"), (logs or {}).get("completions/max_length")
        if share is None or longest is None:
            return  # an evaluation, or the final log event
        self._cut_off = [*self._cut_off, share] if share >= _NEARLY_ALL else []
        if len(self._cut_off) == _LOGS:
            at = "" if self._limit is None else f" at trainer.args.max_completion_length={self._limit}"
            mean = sum(self._cut_off) / _LOGS
            self._warn(
                f"{mean:.0%} of the completions up to step {state.global_step} were cut off{at}: "
                "they have no room to end, or the policy never writes its end; `truncation` says what that is worth"
            )
        self._num_empty = self._num_empty + 1 if longest <= 1 else 0
        if self._num_empty == _LOGS:
            self._warn(
                f"every completion up to step {state.global_step} was empty: the policy ends before it has begun"
            )

    def _warn(self, text: str) -> None:
        _log.warning(text)
        self._bar.print(Text(f"warning: {text}"))
