"""Keep a run's disk and memory use from growing with its length."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from rlhf_cli.config.schema.run_sections import KeepCompletions
from rlhf_cli.runs.completion_tables import prune_completions
from rlhf_cli.runs.run_folder import RunFolder

_KEPT_LOGS = 100
_IS_EVALUATION = "eval_"


@contextlib.contextmanager
def early_collection() -> Iterator[None]:
    """Open a context in which Python's garbage collector ignores all objects that exist already.

    Python collects old garbage once a quarter as many objects are new as there are old ones. The half million objects
    of the imports delay that by hundreds of steps, and each table logged to wandb (a cycle) waits for it in memory.
    """
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


class ShortHistory(TrainerCallback):
    """A callback that keeps the newest 100 training and 100 evaluation log events, on every rank.

    The Trainer keeps all events in memory and writes them into every checkpoint: 2.6 kB per step of a small GRPO run.
    The full record is metrics.jsonl. Readers of the history only need its end, or whether an evaluation ever had a
    metric: choosing the best checkpoint, the tables of a model card.
    """

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Drop older events from `state.log_history`, in place, once it holds twice as many."""
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
    """A callback that deletes the completion tables that `run.keep_completions` does not keep.

    Use it in the main process only.
    """

    def __init__(self, folder: RunFolder, keep: KeepCompletions) -> None:
        self._folder = folder
        self._keep = keep

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Prune before the next step, because a step's table is written after the `on_log` callbacks."""
        self._prune(state.global_step)

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Prune once more at the end."""
        self._prune(0)

    def _prune(self, step: int) -> None:
        # Listing a folder is slow, so prune every tenth step only.
        if self._keep.last != "all" and step % 10 == 0:
            prune_completions(self._folder.path, last=self._keep.last, every=self._keep.every)
