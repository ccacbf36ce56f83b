"""Log a trainer's work: the phase it is in, where its time goes, what TRL prints, what `max_length` does to its rows.

This does not change the training. A phase that begins within another one interrupts it. The watchdog is off while a
trainer saves, since disks may be slow.

TRL does not report rows that are too long: its RewardTrainer drops every pair with a longer text; SFT, DPO and KTO
truncate a row, and drop it if only prompt would remain.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow.compute
import torch
from datasets import Dataset
from peft import PeftModel
from torch import Tensor

from rlhf_cli.errors import DataError
from rlhf_cli.runs import heartbeat as phases
from rlhf_cli.tables.trl_trainers import data_key, too_short_for_all
from rlhf_cli.text.redaction import redacted_tree
from rlhf_cli.trainers.extensions import ExtendedTrainer
from rlhf_cli.trainers.step_profile import count, is_reference, uncounted
from rlhf_cli.trainers.trl_protocol import EvaluationOutput

_BATCH = 1000


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


def _in_phase(name: str, phase: str, *, is_watched: bool = True) -> Callable[..., Any]:
    """Return a method that calls TRL's method `name` within a phase."""

    def call(self: LoggingMixin, *args: Any, **named: Any) -> Any:
        with phases.during(self.extensions.heartbeat, phase, is_watched=is_watched):
            return getattr(super(LoggingMixin, self), name)(*args, **named)

    return call


class LoggingMixin(ExtendedTrainer):
    """For any TRL trainer: report phases to `extensions.heartbeat`, log the profile, write TRL's tables into a file."""

    lengths: dict[str, PreparedLengths]
    """Name of the data -> its measured rows, if TRL prepares rows."""

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
                for name, ids in inputs.items():  # the ids of the answers include those of the prompts
                    if name.endswith("input_ids") and not name.startswith("prompt") and isinstance(ids, Tensor):
                        mask = inputs.get(f"{name.removesuffix('input_ids')}attention_mask")
                        count(ids.numel(), ids.numel() if mask is None else mask.sum())
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
        """Prepare rows as TRL does, and log what `max_length` does to them. Raise DataError if no row is left."""
        prepare, measured = super()._prepare_dataset, self.extensions.measured
        if measured is None:
            return prepare(dataset, processing_class, args, *others)
        is_packed = len(others) == 3 and bool(others[0])  # SFTTrainer's are (packing, formatting_func, dataset_name)
        unlimited, limit = copy.copy(args), args.max_length
        unlimited.max_length = None
        prepared = whole = prepare(
            dataset, processing_class, unlimited, *((False, *others[1:]) if is_packed else others)
        )
        if limit is not None or is_packed:
            prepared = prepare(dataset, processing_class, args, *others)
        tokens = list(_lengths(whole, *measured))
        dropped = 0 if is_packed else len(whole) - len(prepared)  # packing puts several rows into one
        longer = 0 if limit is None else sum(length > limit for length in tokens)
        cut = 0 if is_packed and args.packing_strategy != "bfd" else max(0, longer - dropped)
        lengths = PreparedLengths(len(whole), min(tokens), max(tokens), limit, dropped, cut)
        # Called by the constructor, so the attribute may not exist yet.
        self.__dict__.setdefault("lengths", {})[others[-1]] = lengths
        where = data_key(others[-1])
        if dropped == len(whole):
            raise DataError(**too_short_for_all(len(whole), limit, lengths.shortest, lengths.longest), where=where)
        level = logging.WARNING if dropped or cut else logging.INFO
        logging.getLogger("rlhf").log(level, "%s: %s", where, lengths.describe())
        return prepared

    def _generate_single_turn(self, *args: Any, **named: Any) -> Any:
        heartbeat = self.extensions.heartbeat
        with phases.during(heartbeat, phases.GENERATION), contextlib.ExitStack() as hooks:
            if heartbeat is not None:  # each forward pass is a sign of life
                # Generation bypasses an adapter's own forward, but calls its base model's.
                model = self.model.get_base_model() if isinstance(self.model, PeftModel) else self.model
                hooks.enter_context(model.register_forward_pre_hook(lambda *_: heartbeat.beat()))
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


def _lengths(dataset: Dataset, start: tuple[str, ...], texts: tuple[str, ...]) -> Iterator[int]:
    """Yield the tokens of each row: its beginning plus the longest of its texts."""
    for batch in dataset.select_columns([*start, *texts]).with_format("arrow").iter(batch_size=_BATCH):
        counted = {name: pyarrow.compute.list_value_length(batch[name]).to_pylist() for name in (*start, *texts)}
        for row in range(len(batch)):
            yield sum(counted[name][row] for name in start) + max(counted[name][row] for name in texts)


def hide_in_tables(logs: Mapping[str, object]) -> None:
    """Hide known secrets in TRL's `_logs` in place, not what only looks like one: a model or a data set wrote that."""
    for column in logs.values():
        if isinstance(column, Mapping):
            hide_in_tables(column)
        elif isinstance(column, deque):
            for row, text in enumerate(redacted_tree(list(column), values_only=True)):
                column[row] = text
