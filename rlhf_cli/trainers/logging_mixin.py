"""Log a trainer's work: the phase it is in, where its time goes, what TRL prints.

This does not change the training. A phase that begins within another one interrupts it. The watchdog is off while a
trainer saves, since disks may be slow.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from datasets import Dataset
from peft import PeftModel
from torch import Tensor

from rlhf_cli.runs import heartbeat as phases
from rlhf_cli.text.redaction import redacted_tree
from rlhf_cli.trainers.extensions import ExtendedTrainer
from rlhf_cli.trainers.prepared_lengths import PreparedLengths, prepare_and_measure
from rlhf_cli.trainers.step_profile import count_rows, is_reference, uncounted

if TYPE_CHECKING:
    from rlhf_cli.trainers.trl_protocol import EvaluationOutput


def _in_phase(name: str, phase: str, *, is_watched: bool = True) -> Callable[..., Any]:
    """Return a method that calls TRL's method `name` within a phase."""

    def call(self: LoggingMixin, *args: Any, **named: Any) -> Any:
        with phases.during(self.extensions.heartbeat, phase, is_watched=is_watched):
            return getattr(super(LoggingMixin, self), name)(*args, **named)

    return call


class LoggingMixin(ExtendedTrainer):
    """For any TRL trainer: report phases to `extensions.heartbeat`, log the profile, and put TRL's tables into a file.

    `lengths` maps the name of the data to its measured rows, if TRL prepares rows.
    """

    lengths: dict[str, PreparedLengths]

    get_batch_samples = _in_phase("get_batch_samples", phases.DATA)
    _prepare_inputs = _in_phase("_prepare_inputs", phases.DATA)
    training_step = _in_phase("training_step", phases.LOSS)
    _clip_grad_norm = _in_phase("_clip_grad_norm", phases.CLIPPING)
    save_model = _in_phase("save_model", phases.SAVING, is_watched=False)
    _save_checkpoint = _in_phase("_save_checkpoint", phases.SAVING, is_watched=False)
    _generate_and_score_completions = _in_phase("_generate_and_score_completions", phases.ROLLOUT)
    _calculate_rewards = _in_phase("_calculate_rewards", phases.REWARDS)

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        reference, heartbeat = getattr(self, "ref_model", None), self.extensions.heartbeat
        if reference is not None and heartbeat is not None:  # a trainer of rows calls it within its loss
            outside: list[tuple[str, ...]] = []

            def begin(*_: object) -> None:
                outside.append(heartbeat.phases)
                heartbeat.enter_part((*heartbeat.phases, phases.REFERENCE_LOGPS))

            reference.register_forward_pre_hook(begin)
            reference.register_forward_hook(lambda *_: heartbeat.enter_part(outside.pop()))

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **named: Any) -> Any:
        """Compute the loss. Count the tokens of a trainer that learns from rows."""
        with phases.during(self.extensions.heartbeat, phases.FORWARD):
            if self.extensions.rewards is None and self.extensions.profile is not None:
                count_rows(inputs)
            return super().compute_loss(model, inputs, *args, **named)

    def evaluation_loop(self, *args: Any, **named: Any) -> EvaluationOutput:
        """Evaluate, and name what TRL counted after the evaluated set, as transformers does with the loss."""
        with phases.during(self.extensions.heartbeat, phases.EVALUATION), uncounted():
            output = super().evaluation_loop(*args, **named)
        eval_set = named.get("metric_key_prefix", "eval").partition("_")[2]
        counted = getattr(self, "_metrics", {}).get("eval", {})
        for name in [*counted] if eval_set else ():
            counted[f"{eval_set}_{name}"] = counted.pop(name)
        return output

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log, with the time profile; TRL's printed tables go into the log file, without secrets."""
        profile, file = self.extensions.profile, self.extensions.table_log
        with phases.during(self.extensions.heartbeat, phases.LOGGING), contextlib.ExitStack() as printed:
            if profile is not None and ("loss" in logs or "train_runtime" in logs):
                # in place like TRL's own: the best checkpoint is chosen by an evaluation's log
                logs.update(profile.taken(self.accelerator))
            hide_in_tables(getattr(self, "_logs", {}))
            if file is not None:  # TRL prints a sample of completions, which would disturb the progress bar
                stream = printed.enter_context(file.open("a", encoding="utf-8"))
                printed.enter_context(contextlib.redirect_stdout(stream))
            super().log(logs, start_time)

    def _prepare_dataset(self, dataset: Any, processing_class: Any, args: Any, *others: Any) -> Dataset:
        prepare, columns = super()._prepare_dataset, self.extensions.measured
        if columns is None:
            return prepare(dataset, processing_class, args, *others)
        prepared, lengths = prepare_and_measure(prepare, columns, dataset, processing_class, args, *others)
        # Called by the constructor, so the attribute may not exist yet.
        self.__dict__.setdefault("lengths", {})[others[-1]] = lengths
        lengths.report(others[-1])
        return prepared

    def _generate_single_turn(self, *args: Any, **named: Any) -> Any:
        with phases.during(self.extensions.heartbeat, phases.GENERATION), self._beating():
            return super()._generate_single_turn(*args, **named)

    def _get_per_token_logps_and_entropies(
        self, model: Any, *args: Any, **named: Any
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        compute = super()._get_per_token_logps_and_entropies
        if torch.is_grad_enabled():
            return compute(model, *args, **named)
        phase = phases.REFERENCE_LOGPS if is_reference(model, self.ref_model) else phases.OLD_LOGPS
        with phases.during(self.extensions.heartbeat, phase):
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
