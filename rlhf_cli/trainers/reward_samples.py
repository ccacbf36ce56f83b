"""Show pairs while a reward model learns: both scores, the requested margin, and whether the order is right.

After every evaluation, and at the end of training, score the first held-out pairs (of the first set), or the first
training pairs without an evaluation set. Every row is written to samples.jsonl; the caller displays them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from rlhf_cli.evaluation.scored_pairs import ScoredPair, texts_of
from rlhf_cli.runs.metrics_file import rewind
from rlhf_cli.text.json_values import finite_or_none
from rlhf_cli.text.redaction import redacted_tree
from rlhf_cli.trainers.forward_pass import in_evaluation_mode
from rlhf_cli.trainers.trl_protocol import TrlTrainer

_IDS = ("chosen_ids", "rejected_ids")


class RewardSamples(TrainerCallback):
    """Score the first `num_samples` pairs (-1: all) on all ranks, as sharded models must; the first shows them."""

    def __init__(
        self, trainer: TrlTrainer, num_samples: int, *, file: Path, on_pairs: Callable[[list[ScoredPair]], None]
    ) -> None:
        self._trainer = trainer
        self._file = file
        self._on_pairs = on_pairs
        dataset = trainer.train_dataset if trainer.eval_dataset is None else trainer.eval_dataset
        dataset = next(iter(dataset.values())) if isinstance(dataset, dict) else dataset
        self._rows = dataset.select(range(len(dataset) if num_samples < 0 else min(num_samples, len(dataset))))
        self._shown_at: int | None = None

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Remove rows that a resumed run will write again."""
        if state.is_world_process_zero:
            rewind(self._file, state.global_step)

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Show the pairs with the model's current scores, after the first of several sets."""
        if self._shown_at != state.global_step:
            self._show(state)

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Show them once more, unless that has just been done."""
        # The best model, loaded at the end, may differ from the last evaluated one.
        if self._shown_at != state.global_step or args.load_best_model_at_end:
            self._show(state)

    def _show(self, state: TrainerState) -> None:
        self._shown_at = state.global_step
        if len(self._rows) == 0:
            return
        scores = score_pairs(self._trainer, self._rows)
        if not state.is_world_process_zero:
            return
        decode = self._trainer.processing_class.decode
        pairs = [
            ScoredPair(state.global_step, number, *texts_of(row, decode), *score, margin=row.get("margin"))
            for number, (row, score) in enumerate(zip(self._rows, scores, strict=True), 1)
        ]
        with self._file.open("a", encoding="utf-8") as stream:
            for pair in pairs:
                row = {key: finite_or_none(value) for key, value in (asdict(pair) | {"verdict": pair.verdict}).items()}
                stream.write(json.dumps(redacted_tree(row, values_only=True), ensure_ascii=False) + "\n")
        self._on_pairs(pairs)


def score_pairs(trainer: TrlTrainer, rows: Dataset) -> list[tuple[float, float]]:
    """Return `(chosen, rejected)` scores of a trainer's tokenised rows; the model's mode is restored."""
    model, size = trainer.model, trainer.args.per_device_eval_batch_size
    scores: list[tuple[float, float]] = []
    with in_evaluation_mode(model), torch.no_grad():
        for start in range(0, len(rows), size):
            batch = rows.select(range(start, min(start + size, len(rows)))).select_columns(list(_IDS))
            inputs = trainer.data_collator(list(batch))
            inputs = {name: tensor.to(trainer.args.device) for name, tensor in inputs.items()}
            with trainer.compute_loss_context_manager():
                logits = model(**inputs, use_cache=False).logits
            chosen, rejected = logits.float().squeeze(-1).chunk(2)
            scores += zip(chosen.tolist(), rejected.tolist(), strict=True)
    return scores
