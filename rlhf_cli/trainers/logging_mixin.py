"""Log a trainer's work: the phase it is in, where its time goes, what TRL prints, and what `max_length` does to rows.

This does not change the training. A phase that begins within another one interrupts it. The watchdog is off while a
trainer saves, since disks may be slow.

TRL does not report what `max_length` does to rows. Its RewardTrainer drops every pair with a longer text; SFT, DPO and
KTO truncate a row, and drop it if only prompt would remain.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.compute
import torch
from datasets import Dataset
from peft import PeftModel
from torch import Tensor

from rlhf_cli.errors import DataError
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
)
from rlhf_cli.text.redaction import redacted_tree
from rlhf_cli.trainers.extensions import ExtendedTrainer
from rlhf_cli.trainers.step_profile import count_rows, is_reference
from rlhf_cli.trainers.token_slots import uncounted

if TYPE_CHECKING:
    from rlhf_cli.trainers.trl_protocol import EvaluationOutput, TrlArguments

_BATCH = 1000


class LoggingMixin(ExtendedTrainer):
    """For any TRL trainer: report phases to `extensions.heartbeat`, log the profile, and put TRL's tables into a file.

    `lengths` has the measured rows by name of the data, if TRL prepares rows.
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
        heartbeat = self.extensions.heartbeat
        return contextlib.nullcontext() if heartbeat is None else heartbeat.during(phase, is_watched=is_watched)

    # --- any trainer ---

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: Any) -> Any:
        """Read rows."""
        with self._during(DATA):
            return super().get_batch_samples(epoch_iterator, num_batches, device)

    def _prepare_inputs(self, inputs: Any) -> dict[str, Any]:
        with self._during(DATA):
            return super()._prepare_inputs(inputs)

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any) -> Tensor:
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
        """Evaluate."""
        with self._during(EVALUATION), uncounted():
            return super().evaluation_loop(*args, **named)

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


@dataclass(frozen=True)
class PreparedLengths:
    """The row lengths of one dataset in tokens, and the numbers of dropped and truncated rows."""

    rows: int
    shortest: int
    longest: int
    max_length: int | None
    dropped: int
    cut: int

    def describe(self) -> str:
        """Return `max_length 64 drops 12 of 2000 rows and cuts 30 (shortest 5, longest 90 tokens)`."""
        lengths = f"(shortest {self.shortest}, longest {self.longest} tokens)"
        if self.max_length is None:
            return f"no max_length, all {self.rows} rows as they are {lengths}"
        done = [f"drops {self.dropped} of {self.rows} rows"] if self.dropped else []
        done += [f"cuts {self.cut} of {self.rows} rows off"] if self.cut else []
        return f"max_length {self.max_length} {' and '.join(done) or f'fits all {self.rows} rows'} {lengths}"

    def facts(self) -> dict[str, object]:
        """Return the numbers and their description, for the provenance."""
        return {**dataclasses.asdict(self), "in_words": self.describe()}

    def report(self, name: str) -> None:
        """Log them for TRL's name of the data. Raise DataError if no row is left."""
        where = "data" if name == "train" else "data.eval"
        if self.dropped == self.rows:
            raise DataError(
                f"max_length leaves none of the {self.rows} rows",
                where=where,
                got=f"trainer.args.max_length={self.max_length}, and rows of {self.shortest} to {self.longest} tokens",
                expected=f"at least {self.shortest} for the shortest row, {self.longest} for all of them",
                hint=f"trainer.args.max_length={self.longest}",
            )
        level = logging.WARNING if self.dropped or self.cut else logging.INFO
        logging.getLogger("rlhf").log(level, "%s: %s", where, self.describe())


def prepare_and_measure(
    prepare: Callable[..., Dataset],
    columns: tuple[tuple[str, ...], tuple[str, ...]],
    dataset: Dataset,
    processing_class: object,
    args: TrlArguments,
    *others: object,
) -> tuple[Dataset, PreparedLengths]:
    """Return the prepared rows, and the lengths of `columns` of the rows that are prepared without a limit.

    columns: the beginning of a row, and its texts; only the longest text counts.
    """
    is_packed = len(others) == 3 and bool(others[0])  # SFTTrainer's others are (packing, formatting_func, dataset_name)
    unlimited = copy.copy(args)
    unlimited.max_length = None
    measured = prepare(dataset, processing_class, unlimited, *((False, *others[1:]) if is_packed else others))
    prepared = limited = measured
    if args.max_length is not None or is_packed:
        prepared = prepare(dataset, processing_class, args, *others)
        limited = measured if is_packed else prepared  # packing puts several rows into one
    tokens = list(_lengths(measured, *columns))
    dropped = len(measured) - len(limited)
    longer = sum(length > args.max_length for length in tokens) if args.max_length is not None else 0
    keeps_whole = is_packed and args.packing_strategy != "bfd"
    return prepared, PreparedLengths(
        rows=len(measured),
        shortest=min(tokens),
        longest=max(tokens),
        max_length=args.max_length,
        dropped=dropped,
        cut=0 if keeps_whole else max(0, longer - dropped),
    )


def _lengths(dataset: Dataset, start: tuple[str, ...], texts: tuple[str, ...]) -> Iterator[int]:
    """Yield the tokens of each row: its beginning plus the longest of its texts."""
    for batch in dataset.select_columns([*start, *texts]).with_format("arrow").iter(batch_size=_BATCH):
        counted = {name: pyarrow.compute.list_value_length(batch[name]).to_pylist() for name in (*start, *texts)}
        for row in range(len(batch)):
            yield sum(counted[name][row] for name in start) + max(counted[name][row] for name in texts)
