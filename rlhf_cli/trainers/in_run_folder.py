"""Adapt a TRL trainer's outputs: checkpoint folder, printed tables, secrets, choice of the best checkpoint.

Every method here calls super() and copies no TRL code. tests/trainers/test_contract.py names each overridden method, so
that a change in TRL fails there with a clear message.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from transformers.trainer import TRAINING_ARGS_NAME

from rlhf_cli.errors import ConfigError
from rlhf_cli.suggest import nearest
from rlhf_cli.trainers.additions import Additions
from rlhf_cli.trainers.finite_steps import FiniteSteps
from rlhf_cli.trainers.hidden_texts import hide_in_arguments, hide_in_tables


class InRunFolder(FiniteSteps):
    """For any TRL trainer: put checkpoints under `checkpoints/` and TRL's printed tables into a log file."""

    additions: Additions

    def _get_output_dir(self, trial: Any) -> str:
        return str(Path(super()._get_output_dir(trial=trial), "checkpoints"))

    def _determine_best_metric(self, metrics: dict[str, Any], trial: Any) -> bool:
        wanted = self.args.metric_for_best_model
        if wanted is not None:
            name = wanted if wanted.startswith("eval_") else f"eval_{wanted}"
            history = self.state.log_history[:-1]
            was_there = any(name in event for event in history)
            if name not in metrics and not was_there and not _may_come(name, metrics):
                close = nearest(name, metrics)
                raise ConfigError(
                    f"no evaluation logs {name}, by which the best checkpoint was to be chosen",
                    where="trainer.args.metric_for_best_model",
                    got=wanted,
                    expected="one of " + ", ".join(metrics),
                    hint=f"trainer.args.metric_for_best_model={close}" if close else None,
                )
            if metrics.get(name) is None:
                # A reward may have scored no row this time, or not only 0 and 1: that must not end the run.
                logging.getLogger("rlhf").warning("this evaluation has no %s: its checkpoint is not the best", name)
                return False
        return super()._determine_best_metric(metrics, trial)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log as in TRL, with TRL's printed output in the log file."""
        hide_in_tables(getattr(self, "_logs", {}))
        # TRL prints a sample of completions on every log, which would disturb the progress bar.
        with _stdout_into(self.additions.table_log):
            super().log(logs, start_time)

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        super()._save(output_dir, state_dict)
        if self.args.should_save:
            hide_in_arguments(self.args, Path(output_dir or self.args.output_dir, TRAINING_ARGS_NAME))


def _may_come(name: str, metrics: Mapping[str, object]) -> bool:
    """Return whether it is pass@k or maj@k of a reward that has not scored any row yet."""
    is_attempts = name.startswith(("eval_pass@", "eval_maj@"))
    return is_attempts and metrics.get(f"eval_sampled/rewards/{name.rpartition('/')[2]}", 0.0) is None


@contextlib.contextmanager
def _stdout_into(file: Path | None) -> Iterator[None]:
    if file is None:
        yield
        return
    with file.open("a", encoding="utf-8") as stream, contextlib.redirect_stdout(stream):
        yield
