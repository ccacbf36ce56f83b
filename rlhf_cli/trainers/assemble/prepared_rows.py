"""Prepare rows as the run's trainer does, without its model.

TRL's constructor prepares the rows and then calls that of transformers' Trainer. We run the former with a model of one
narrow layer and end it where it calls the latter, so the token ids and the collator are TRL's own.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn, cast

import torch
from datasets import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification, PreTrainedTokenizerBase, Trainer

from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.config.schema.run_sections import Launch
from rlhf_cli.data.loading import quiet
from rlhf_cli.errors import ConfigError
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.trainers.assemble.trl_config import trainer_class_of, trl_config

_ROW = "rlhf_row"
"""Column with the row's index: TRL drops, shuffles and splits rows."""
_OF_TEXTS = ("input_ids", "attention_mask", "completion_mask", "labels")
_CHANGED = {"packing": False, "padding_free": False, "model_init_kwargs": None, "dataset_num_proc": None}

ReadText = tuple[str, list[int], list[bool]]
"""A text of a row as it is trained on: its column, its token ids, and which of them are trained on."""


class _Prepared(Exception):
    """Carries the arguments of transformers' Trainer."""


class _StopsHere(Trainer):
    """Stands between TRL's trainer and transformers', and ends the constructor when the rows are ready."""

    def __init__(self, **given: object) -> NoReturn:
        raise _Prepared(given)


def prepared_rows(experiment: Experiment, rows: Dataset, tokenizer: PreTrainedTokenizerBase) -> list[list[ReadText]]:
    """Return the texts of each row as the trainer reads them; none for a row that it leaves out.

    Rows are shown before packing. Raise ConfigError with TRL's message if it refuses the rows or the arguments.
    """
    row, trainer = experiment.trainer.row, trainer_class_of(experiment.trainer)
    model = experiment.model.model_copy(update={"quantize": None})
    alone = experiment.model_copy(update={"launch": Launch(device="cpu", precision="float32"), "model": model})
    in_memory = Dataset.from_list(rows.to_list(), features=rows.features)  # so that TRL's steps are not cached
    config = LlamaConfig(vocab_size=len(tokenizer), hidden_size=8, intermediate_size=8, num_attention_heads=1)
    config.num_hidden_layers, config.pad_token_id, config.num_labels = 1, tokenizer.pad_token_id, 1
    narrow = LlamaForSequenceClassification if row.trains == "reward model" else LlamaForCausalLM
    build = cast("Callable[..., object]", type("Preparing", (trainer, _StopsHere), {}))
    try:
        with quiet(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the run writes the libraries' warnings into its log
            logging.disable(logging.WARNING)
            args = trl_config(alone, RunFolder(Path("check")))
            for name in _CHANGED.keys() & vars(args).keys():
                setattr(args, name, _CHANGED[name])
            numbered = in_memory.add_column(_ROW, list(range(len(rows))))
            build(model=narrow(config), args=args, train_dataset=numbered, processing_class=tokenizer)
    except _Prepared as ready:
        given = ready.args[0]
    except (ValueError, TypeError, RuntimeError) as error:
        raise ConfigError(f"{trainer.__name__} refuses these rows", where="trainer.args", got=error) from error
    finally:
        logging.disable(logging.NOTSET)
    there = (names for names in row.learns_from if set(names) <= set(rows.column_names))
    columns = [name for name in next(there, rows.column_names) if name not in ("prompt", "label")]
    texts: list[list[ReadText]] = [[] for _ in rows]
    for entry in given["train_dataset"]:
        number = entry.pop(_ROW)
        is_half = row.splits_pairs and "chosen" in rows.column_names
        named = ["chosen" if entry["label"] else "rejected"] if is_half else columns
        batch = given["data_collator"]([entry])
        for place, column in enumerate(named[: len(batch.get("input_ids", named))]):
            if "input_ids" in batch:
                part = {key: batch[key][place] for key in _OF_TEXTS if key in batch}  # a margin belongs to the pair
            else:  # ORPO and CPO collate each answer apart
                part = {key: batch[f"{column}_{key}"][0] for key in ("input_ids", "attention_mask", "labels")}
            ids = part["input_ids"]
            is_read = part.get("attention_mask", torch.ones_like(ids)).bool()
            learned = part["labels"] != -100 if "labels" in part else part.get("completion_mask", is_read).bool()
            texts[number].append((column, ids[is_read].tolist(), learned[is_read].tolist()))
    return texts
