"""Prepare rows as the run's trainer does, without its model.

TRL's constructor prepares the rows and then calls that of transformers' Trainer. We run the former with a model of one
narrow layer and end it where it calls the latter, so the token ids and the collator are TRL's own.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, cast

import torch
from datasets import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification, PreTrainedTokenizerBase, Trainer

from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.config.schema.launch_sections import Launch
from rlhf_cli.data.loading import quiet
from rlhf_cli.errors import ConfigError
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.tables.trl_trainers import TrainerRow
from rlhf_cli.trainers.assemble.trl_config import trainer_class_of, trl_config

_ROW = "rlhf_row"
"""Column with the row's index: TRL drops, shuffles and splits rows."""
_Batch = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class ReadText:
    """A text of a row as it is trained on: its column, its token ids, and which of them are trained on."""

    column: str
    ids: list[int]
    is_learned: list[bool]


class _Prepared(Exception):
    """Carries the arguments of transformers' Trainer."""

    def __init__(self, given: Mapping[str, object]) -> None:
        super().__init__()
        self.given = given


class _StopsHere(Trainer):
    """Stands between TRL's trainer and transformers', and ends the constructor when the rows are ready."""

    def __init__(self, **given: object) -> NoReturn:
        raise _Prepared(given)


def prepared_rows(experiment: Experiment, rows: Dataset, tokenizer: PreTrainedTokenizerBase) -> list[list[ReadText]]:
    """Return the texts of each row as the trainer reads them; none for a row that it leaves out.

    Rows are shown before packing. Raise ConfigError with TRL's message if it refuses the rows or the arguments.
    """
    model, row = experiment.model.model_copy(update={"quantize": None}), experiment.trainer.row
    alone = {"launch": Launch(device="cpu", precision="float32"), "model": model}
    with _silent():
        args = trl_config(experiment.model_copy(update=alone), RunFolder(Path("check")))
    others = {"packing": False, "padding_free": False, "model_init_kwargs": None, "dataset_num_proc": None}
    for name in others.keys() & vars(args).keys():
        setattr(args, name, others[name])
    in_memory = Dataset.from_list(rows.to_list(), features=rows.features)  # so that TRL's steps are not cached
    trainer = trainer_class_of(experiment.trainer)
    build = cast("Callable[..., object]", type("Preparing", (trainer, _StopsHere), {}))
    given = {"args": args, "processing_class": tokenizer, "model": _stand_in(row, tokenizer)}
    try:
        with quiet(), _silent():
            build(train_dataset=in_memory.add_column(_ROW, list(range(len(rows)))), **given)
    except _Prepared as ready:
        prepared, collate = cast("Dataset", ready.given["train_dataset"]), ready.given["data_collator"]
    except (ValueError, TypeError, RuntimeError) as error:
        where = f"trainer.args of {experiment.trainer.name}"
        raise ConfigError(f"{trainer.__name__} refuses these rows", where=where, got=error) from error
    texts: list[list[ReadText]] = [[] for _ in rows]
    for entry in prepared:
        number = entry.pop(_ROW)
        batch = cast("Callable[[list[object]], _Batch]", collate)([entry])
        texts[number] += _texts(batch, _columns(row, rows.column_names, entry))
    return texts


@contextmanager
def _silent() -> Iterator[None]:
    """Hide the libraries' warnings, which the run writes into its log."""
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)


def _stand_in(row: TrainerRow, tokenizer: PreTrainedTokenizerBase) -> torch.nn.Module:
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1
    )
    config.pad_token_id, config.num_labels = tokenizer.pad_token_id, 1
    return LlamaForSequenceClassification(config) if row.trains == "reward model" else LlamaForCausalLM(config)


def _columns(row: TrainerRow, columns: Sequence[str], entry: Mapping[str, object]) -> list[str]:
    """Return the column of each text in a prepared entry."""
    if row.splits_pairs and "chosen" in columns:
        return ["chosen" if entry["label"] else "rejected"]
    known = next(names for names in row.learns_from if set(names) <= {*columns, *(names if len(names) == 1 else ())})
    return [name for name in known if name not in ("prompt", "label")]


def _texts(batch: _Batch, columns: Sequence[str]) -> list[ReadText]:
    if "input_ids" in batch:
        parts = [{key: rows[at : at + 1] for key, rows in batch.items()} for at in range(len(batch["input_ids"]))]
    else:  # ORPO and CPO collate each answer apart
        parts = [{key: batch[f"{name}_{key}"] for key in ("input_ids", "attention_mask", "labels")} for name in columns]
    texts = []
    for column, part in zip(columns, parts, strict=False):
        ids = part["input_ids"][0]
        is_read = part["attention_mask"][0].bool() if "attention_mask" in part else torch.ones_like(ids).bool()
        learned = is_read
        if "labels" in part:
            learned = part["labels"][0] != -100
        elif "completion_mask" in part:
            learned = part["completion_mask"][0].bool()
        texts.append(ReadText(column, ids[is_read].tolist(), learned[is_read].tolist()))
    return texts
