"""Tell a TRL trainer where to write and which secrets to hide.

Every method here calls super() and copies no TRL code. tests/trainers/test_contract.py names each overridden method, so
that a change in TRL fails there with a clear message.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import logging
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import TrainingArguments
from transformers.trainer import TRAINING_ARGS_NAME

from rlhf_cli.errors import ConfigError
from rlhf_cli.text.redaction import redacted_tree
from rlhf_cli.text.suggest import nearest
from rlhf_cli.trainers.additions import Additions
from rlhf_cli.trainers.finite_steps import FiniteSteps


def hide_in_tables(logs: Mapping[str, object]) -> None:
    """Hide known secrets in TRL's `_logs` in place: an environment value may occur in every prompt.

    Texts that only look like a secret stay: a model or a data set wrote them.
    """
    for column in logs.values():
        if isinstance(column, Mapping):
            hide_in_tables(column)
        elif isinstance(column, deque):
            for row, text in enumerate(redacted_tree(list(column), values_only=True)):
                column[row] = text


def hide_in_arguments(args: TrainingArguments, file: Path) -> None:
    """Rewrite `file`, where transformers has just saved the arguments, if one of them contains a secret."""
    values = {field.name: getattr(args, field.name, None) for field in dataclasses.fields(args)}
    hidden = dict(zip(values, redacted_tree(list(values.values())), strict=True))  # reads the environment only once
    changed = {name: value for name, value in hidden.items() if isinstance(value, str | list | tuple | dict)}
    changed = {name: value for name, value in changed.items() if value != values[name]}
    if changed:
        shown = copy.copy(args)
        vars(shown).update(changed)
        torch.save(shown, file)


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
