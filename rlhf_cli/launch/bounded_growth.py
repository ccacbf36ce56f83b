"""Keeps what a run leaves, on disk and in memory, from growing with its length: callbacks for the worker."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from rlhf_cli.config.schema.run_sections import KeepCompletions
from rlhf_cli.runs.completion_tables import prune_completions
from rlhf_cli.runs.run_folder import RunFolder

_KEPT_LOGS = 100
_IS_EVALUATION = "eval_"


class ShortHistory(TrainerCallback):
    """A callback that keeps the newest 100 log events of training and the newest 100 of evaluations, on every rank.

    The Trainer holds all of them in memory and writes them into every checkpoint: 2.6 kB a step of a small GRPO. The
    record is metrics.jsonl. What reads the history reads its end, or asks whether an evaluation ever had a figure: the
    choice of the best checkpoint, the tables of a model card.
    """

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Drop what is older from `state.log_history`, in place, once there is twice as much."""
        if len(state.log_history) <= 2 * _KEPT_LOGS:
            return
        kept = {True: 0, False: 0}
        newest: list[dict[str, float]] = []
        for event in reversed(state.log_history):
            is_evaluation = any(name.startswith(_IS_EVALUATION) for name in event)
            kept[is_evaluation] += 1
            if kept[is_evaluation] <= _KEPT_LOGS:
                newest.append(event)
        state.log_history[:] = reversed(newest)


class PruneCompletions(TrainerCallback):
    """A callback that removes the tables of completions that `run.keep_completions` does not keep.

    It is for the main process only.
    """

    def __init__(self, folder: RunFolder, keep: KeepCompletions) -> None:
        self._folder = folder
        self._keep = keep

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Remove them before the next step: a step's table is written after the callbacks have heard of its log."""
        self._prune(state.global_step)

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Remove them once more at the end."""
        self._prune(0)

    def _prune(self, step: int) -> None:
        # Listing a folder costs: every tenth step is often enough.
        if self._keep.last != "all" and step % 10 == 0:
            prune_completions(self._folder.path, last=self._keep.last, every=self._keep.every)
