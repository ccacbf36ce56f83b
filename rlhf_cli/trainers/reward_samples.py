"""Pairs to look at while a reward model learns: both scores, the margin asked for, and whether the order is right.

After every evaluation, and at the end of training, the first held-out pairs are scored, or the first training pairs
where none are held out. The table goes to the terminal and log.txt, to wandb, and every row to samples.jsonl.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from rlhf_cli.runs.metrics import rewind
from rlhf_cli.trainers.callbacks import ProgressBar

_IDS = ("chosen_ids", "rejected_ids")
_PROMPT_WIDTH, _WIDTH, _LOG_WIDTH = 24, 40, 140
_STYLE = {"right": "green", "wrong": "red", "tie": "yellow"}


@dataclass(frozen=True)
class Pair:
    """One scored pair. `margin` is None where none is configured; the verdict is about the order alone."""

    step: int
    row: int
    prompt: str
    chosen: str
    rejected: str
    score_chosen: float
    score_rejected: float
    margin: float | None

    @property
    def verdict(self) -> str:
        """`right` where the chosen answer scores higher, `wrong` where it scores lower or has no number, or `tie`."""
        if self.score_chosen == self.score_rejected:
            return "tie"
        return "right" if self.score_chosen > self.score_rejected else "wrong"


class RewardSamples(TrainerCallback):  # type: ignore[misc]
    """Scores and shows the first `num_samples` pairs (-1: all) of a RewardTrainer. For every rank; the first writes.

    All ranks score them: a model that is split over ranks answers only when all of them ask.
    """

    def __init__(self, trainer: Any, num_samples: int, *, samples_file: Path, log_file: Path | None) -> None:
        self._trainer = trainer
        self._file = samples_file
        self._log_file = log_file
        dataset = trainer.train_dataset if trainer.eval_dataset is None else trainer.eval_dataset
        self._rows = dataset.select(range(len(dataset) if num_samples < 0 else min(num_samples, len(dataset))))
        self._shown_at: int | None = None

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if state.is_world_process_zero:
            rewind(self._file, state.global_step)

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._show(state)

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        # The best model, loaded at the end, is another than the one evaluated last.
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
            Pair(state.global_step, number, *texts_of(row, decode), *score, margin=row.get("margin"))
            for number, (row, score) in enumerate(zip(self._rows, scores, strict=True), 1)
        ]
        with self._file.open("a", encoding="utf-8") as stream:
            stream.writelines(json.dumps(_plain(pair), ensure_ascii=False) + "\n" for pair in pairs)
        table = table_of(pairs)
        if self._log_file is not None:
            with self._log_file.open("a", encoding="utf-8") as stream:
                Console(file=stream, width=_LOG_WIDTH).print(table)
        for callback in self._trainer.callback_handler.callbacks:
            if isinstance(callback, ProgressBar):
                callback.print(table)
        _to_wandb(pairs)


def score_pairs(trainer: Any, rows: Any) -> list[tuple[float, float]]:
    """`(chosen, rejected)` scores of a trainer's tokenised rows; the model's mode is what it was."""
    model = trainer.model
    was_training = model.training
    size = trainer.args.per_device_eval_batch_size
    found: list[tuple[float, float]] = []
    model.eval()
    try:
        for start in range(0, len(rows), size):
            batch = rows.select(range(start, min(start + size, len(rows)))).select_columns(list(_IDS))
            inputs = trainer.data_collator(list(batch))
            inputs = {name: tensor.to(trainer.args.device) for name, tensor in inputs.items()}
            with torch.no_grad(), trainer.compute_loss_context_manager():
                logits = model(**inputs, use_cache=False).logits
            chosen, rejected = logits.float().squeeze(-1).chunk(2)
            found += zip(chosen.tolist(), rejected.tolist(), strict=True)
    finally:
        model.train(was_training)
    return found


def texts_of(row: Mapping[str, Any], decode: Any) -> tuple[str, str, str]:
    """`(prompt, chosen, rejected)` of a row. What has no prompt of its own is split where the two answers part.

    Of a conversation the last messages. Token ids are decoded, also where there are texts: that is what is scored.
    """
    asked, chosen, rejected = (_messages(row.get(column)) for column in ("prompt", "chosen", "rejected"))
    if chosen and rejected:
        before = [*asked, *chosen[:-1]]
        return (_content(before[-1]) if before else "", _content(chosen[-1]), _content(rejected[-1]))
    texts = [decode(row[ids], skip_special_tokens=True) for ids in _IDS]
    prompt = row.get("prompt")
    if not (isinstance(prompt, str) and all(text.startswith(prompt) for text in texts)):
        prompt = os.path.commonprefix(texts)  # noqa: RUF071
    return (prompt, *(text.removeprefix(prompt) for text in texts))


def table_of(pairs: Sequence[Pair]) -> Table:
    """What a person looks at: the end of the prompt, the beginnings of both answers, scores and verdict."""
    right = sum(pair.verdict == "right" for pair in pairs)
    title = f"step {pairs[0].step}: {right} of {len(pairs)} pairs in the right order"
    table = Table(title=title, title_justify="left", box=None, padding=(0, 1, 0, 0), header_style="bold")
    has_margin = any(pair.margin is not None for pair in pairs)
    table.add_column("prompt", no_wrap=True)
    for answer in ("chosen", "rejected"):
        table.add_column(answer, max_width=_WIDTH)  # these give way on a narrow screen
        table.add_column("score", justify="right", no_wrap=True)
    if has_margin:
        table.add_column("margin", justify="right", no_wrap=True)
    table.add_column("order", no_wrap=True)
    for pair in pairs:
        table.add_row(
            Text(_end(pair.prompt)),
            Text(_on_one_line(pair.chosen), no_wrap=True, overflow="ellipsis"),
            _number(pair.score_chosen),
            Text(_on_one_line(pair.rejected), no_wrap=True, overflow="ellipsis"),
            _number(pair.score_rejected),
            *([_number(pair.margin)] if has_margin else []),
            Text(pair.verdict, _STYLE[pair.verdict]),
        )
    return table


def _to_wandb(pairs: Sequence[Pair]) -> None:
    wandb = sys.modules.get("wandb")  # where a run is active it was imported
    if wandb is None or getattr(wandb, "run", None) is None:
        return
    rows = [{**asdict(pair), "verdict": pair.verdict} for pair in pairs]
    table = wandb.Table(columns=list(rows[0]), data=[list(row.values()) for row in rows])
    wandb.log({"samples": table, "train/global_step": pairs[0].step})


def _plain(pair: Pair) -> dict[str, Any]:
    """JSON has no NaN: a score that is none is null."""
    row = {**asdict(pair), "verdict": pair.verdict}
    return {key: None if value != value else value for key, value in row.items()}


def _messages(value: Any) -> list[Mapping[str, Any]]:
    return value if isinstance(value, list) and value and isinstance(value[0], Mapping) else []


def _content(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    return content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _on_one_line(text: str) -> str:
    return repr(" ".join(text.split()))[1:-1]


def _end(prompt: str) -> str:
    """The end of what was asked; that it is the assistant's turn now goes without saying."""
    shown = _on_one_line(prompt.rstrip().removesuffix("Assistant:"))
    return shown if len(shown) <= _PROMPT_WIDTH else "…" + shown[1 - _PROMPT_WIDTH :]
