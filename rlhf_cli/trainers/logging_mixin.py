"""Log a trainer's work: the phase it is in, where its time goes, what TRL prints.

This does not change the training. A phase that begins within another one interrupts it. The watchdog is off while a
trainer saves, since disks may be slow.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from datasets import Dataset
from peft import PeftModel
from torch import Tensor

from rlhf_cli.runs.heartbeat import (
    CLIPPING,
    DATA,
    EVALUATION,
    FORWARD,
    GENERATION,
    LOGGING,
    LOSS,
    OLD_LOGPS,
    REFERENCE_LOGPS,
    REWARDS,
    ROLLOUT,
    SAVING,
    during,
)
from rlhf_cli.text.redaction import redacted_tree
from rlhf_cli.trainers.extensions import ExtendedTrainer
from rlhf_cli.trainers.step_profile import count_rows, is_reference, uncounted

if TYPE_CHECKING:
    from rlhf_cli.trainers.prepared_lengths import PreparedLengths
    from rlhf_cli.trainers.trl_protocol import EvaluationOutput


class LoggingMixin(ExtendedTrainer):
    """For any TRL trainer: report phases to `extensions.heartbeat`, log the profile, and put TRL's tables into a file.

    `lengths` maps the name of the data to its measured rows, if TRL prepares rows.
    """

    lengths: dict[str, PreparedLengths]

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        reference, heartbeat = getattr(self, "ref_model", None), self.extensions.heartbeat
        if reference is not None and heartbeat is not None:  # a trainer of rows calls it within its loss
            outside: list[tuple[str, ...]] = []

            def begin(*_: object) -> None:
                outside.append(heartbeat.phases)
                heartbeat.enter_part((*heartbeat.phases, REFERENCE_LOGPS))

            reference.register_forward_pre_hook(begin)
            reference.register_forward_hook(lambda *_: heartbeat.enter_part(outside.pop()))

    def _during(self, phase: str, *, is_watched: bool = True) -> AbstractContextManager[None]:
        return during(self.extensions.heartbeat, phase, is_watched=is_watched)

    # --- any trainer ---

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: Any) -> Any:
        """Read rows."""
        with self._during(DATA):
            return super().get_batch_samples(epoch_iterator, num_batches, device)

    def _prepare_inputs(self, inputs: Any) -> dict[str, Any]:
        with self._during(DATA):
            return super()._prepare_inputs(inputs)

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        """Compute a micro-batch's loss and gradient."""
        with self._during(LOSS):
            return super().training_step(model, inputs, num_items_in_batch)

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **named: Any) -> Any:
        """Compute the loss. Count the tokens of a trainer that learns from rows."""
        with self._during(FORWARD):
            if self.extensions.rewards is None and self.extensions.profile is not None:
                count_rows(inputs)
            return super().compute_loss(model, inputs, *args, **named)

    def _clip_grad_norm(self, model: Any) -> Any:
        with self._during(CLIPPING):
            return super()._clip_grad_norm(model)

    def evaluation_loop(self, *args: Any, **named: Any) -> EvaluationOutput:
        """Evaluate, and name what TRL counted after the evaluated set, as transformers does with the loss."""
        with self._during(EVALUATION), uncounted():
            output = super().evaluation_loop(*args, **named)
        eval_set = named.get("metric_key_prefix", "eval").partition("_")[2]
        counted = getattr(self, "_metrics", {}).get("eval", {})
        for name in [*counted] if eval_set else ():
            counted[f"{eval_set}_{name}"] = counted.pop(name)
        return output

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save a model."""
        with self._during(SAVING, is_watched=False):
            super().save_model(output_dir, _internal_call)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        with self._during(SAVING, is_watched=False):
            super()._save_checkpoint(model, trial)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log, with the time profile; TRL's printed tables go into the log file, without secrets."""
        with self._during(LOGGING):
            profile = self.extensions.profile
            if profile is not None and ("loss" in logs or "train_runtime" in logs):
                # in place like TRL's own: the best checkpoint is chosen by an evaluation's log
                logs.update(profile.taken(self.accelerator))
            hide_in_tables(getattr(self, "_logs", {}))
            # TRL prints a sample of completions on every log, which would disturb the progress bar.
            with _stdout_into(self.extensions.table_log):
                super().log(logs, start_time)

    def _prepare_dataset(self, dataset: Any, processing_class: Any, args: Any, *others: Any) -> Dataset:
        prepare, columns = super()._prepare_dataset, self.extensions.measured
        if columns is None:
            return prepare(dataset, processing_class, args, *others)
        from rlhf_cli.trainers.prepared_lengths import prepare_and_measure

        prepared, lengths = prepare_and_measure(prepare, columns, dataset, processing_class, args, *others)
        # Called by the constructor, so the attribute may not exist yet.
        self.__dict__.setdefault("lengths", {})[others[-1]] = lengths
        lengths.report(others[-1])
        return prepared

    # --- a trainer that generates ---

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        with self._during(ROLLOUT):
            return super()._generate_and_score_completions(inputs)

    def _generate_single_turn(self, *args: Any, **named: Any) -> Any:
        with self._during(GENERATION), self._beating():
            return super()._generate_single_turn(*args, **named)

    def _calculate_rewards(self, *args: Any, **named: Any) -> Tensor:
        with self._during(REWARDS):
            return super()._calculate_rewards(*args, **named)

    def _get_per_token_logps_and_entropies(
        self, model: Any, *args: Any, **named: Any
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        compute = super()._get_per_token_logps_and_entropies
        if torch.is_grad_enabled():
            return compute(model, *args, **named)
        with self._during(REFERENCE_LOGPS if is_reference(model, self.ref_model) else OLD_LOGPS):
            return compute(model, *args, **named)

    @contextlib.contextmanager
    def _beating(self) -> Iterator[None]:
        """Report each forward pass of a generation as a sign of life."""
        heartbeat = self.extensions.heartbeat
        if heartbeat is None:
            yield
            return
        # Generation bypasses an adapter's own forward, but calls its base model's.
        model = self.model.get_base_model() if isinstance(self.model, PeftModel) else self.model
        hook = model.register_forward_pre_hook(lambda *_: heartbeat.beat())
        try:
            yield
        finally:
            hook.remove()


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


@contextlib.contextmanager
def _stdout_into(file: Path | None) -> Iterator[None]:
    if file is None:
        yield
        return
    with file.open("a", encoding="utf-8") as stream, contextlib.redirect_stdout(stream):
        yield
