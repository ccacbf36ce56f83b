"""What we add to any TRL trainer: where it writes, and for those that take rewards, the reward stack.

Every method here calls super() and copies none of its body. tests/trainers/test_contract.py names each seam, so that
a TRL that moves one fails there in a readable place.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

import pyarrow
import pyarrow.parquet
from torch import Tensor

_TABLE_COLUMNS = {"step", "prompt", "completion", "advantage"}
"""What TRL's completions table has anyway."""


class Stack(Protocol):
    """What a trainer needs of a reward stack."""

    @property
    def names(self) -> list[str]: ...

    def batch(self) -> AbstractContextManager[None]: ...


class InRunFolder:
    """Puts checkpoints under `checkpoints/` and TRL's printed tables into a log file."""

    table_log: Path | None = None

    def _get_output_dir(self, trial: Any) -> str:
        return str(Path(super()._get_output_dir(trial=trial), "checkpoints"))  # type: ignore[misc]

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        # TRL prints a sample of completions on every log; beside a progress bar that belongs into the log file.
        with _stdout_into(self.table_log):
            super().log(logs, start_time)  # type: ignore[misc]


class WithRewardStack(InRunFolder):
    """A trainer whose reward functions are the columns of one stack."""

    reward_stack: Stack

    def _calculate_rewards(
        self,
        inputs: list[dict[str, Any]],
        prompts: list[Any],
        completions: list[Any],
        completion_ids_list: list[list[int]],
    ) -> Tensor:
        """TRL's matrix, (rows of all ranks, rewards), NaN where a reward does not apply."""
        with self.reward_stack.batch():
            rewards: Tensor = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)  # type: ignore[misc]
        self._log_dataset_columns(inputs)
        return rewards

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        super().log(logs, start_time)
        args = self.args  # type: ignore[attr-defined]
        if args.log_completions and self.accelerator.is_main_process:  # type: ignore[attr-defined]
            folder, step = Path(args.output_dir, "completions"), self.state.global_step  # type: ignore[attr-defined]
            self._write_completions(folder / f"completions_{step:05d}.parquet")

    def _write_completions(self, file: Path) -> None:
        """TRL's GRPOTrainer keeps its completions table on disk, its RLOOTrainer only in wandb: here all do."""
        logs = self._logs  # type: ignore[attr-defined]
        if file.exists() or not logs["prompt"]:
            return
        columns = {
            "step": [self.state.global_step] * len(logs["prompt"]),  # type: ignore[attr-defined]
            "prompt": logs["prompt"],
            "completion": logs["completion"],
            **logs["rewards"],
            **logs["extra"],
            "advantage": logs["advantages"],
        }
        file.parent.mkdir(exist_ok=True)
        pyarrow.parquet.write_table(pyarrow.table({name: list(values) for name, values in columns.items()}), file)

    def _log_dataset_columns(self, inputs: list[dict[str, Any]]) -> None:
        """Put the dataset's columns into the completions table, which TRL leaves out."""
        taken = _TABLE_COLUMNS | set(self.reward_stack.names) | set(self._pending_extra_logs)  # type: ignore[attr-defined]
        for column in inputs[0]:
            if column not in taken:
                self._log_completion_extra(column, [row.get(column) for row in inputs])  # type: ignore[attr-defined]


def with_our_seams(trl_trainer: type) -> type:
    """The subclass of a TRL trainer that runs experiments: with the reward stack when it takes reward functions.

    It keeps TRL's class name, which TRL writes into profiling metrics and model cards.
    """
    takes_rewards = "reward_funcs" in inspect.signature(trl_trainer).parameters
    ours = WithRewardStack if takes_rewards else InRunFolder
    return type(trl_trainer.__name__, (ours, trl_trainer), {"__module__": __name__, "__doc__": trl_trainer.__doc__})


@contextlib.contextmanager
def _stdout_into(file: Path | None) -> Iterator[None]:
    if file is None:
        yield
        return
    with file.open("a", encoding="utf-8") as stream, contextlib.redirect_stdout(stream):
        yield
