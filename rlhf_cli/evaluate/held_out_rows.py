"""Loads the rows an evaluation runs on: those the run held out, else a source of their own, else the training rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.data.loading import load_split
from rlhf_cli.data.preferences import bad_pairs
from rlhf_cli.data.rows import check_rows, hold_out
from rlhf_cli.data.template import template_columns
from rlhf_cli.errors import ConfigError
from rlhf_cli.measure.preference_pairs import Row
from rlhf_cli.plan.data_sources import eval_sources, training_sources

if TYPE_CHECKING:
    import datasets


def load_held_out(
    experiment: Experiment, *, needs: str, limit: int | None, or_training: bool
) -> tuple[list[Row], str | None]:
    """Return the rows, and a warning about where they come from or None. Column `needs` has something in every row.

    A fraction that training held out is the same again: same data, same seed, same rows; without equal and empty
    answers where training left these out. `limit`: so many rows, evenly spread over all; None for all of them.
    `or_training`: where nothing was held out, take the training rows. Raises DataError for rows that cannot be had,
    ConfigError where none are named.
    """
    data, warning = experiment.data, None
    prompt = data.model_dump()["prompt"]
    if data.eval is not None and data.eval.fraction is None:
        sources = eval_sources(data)
        dataset = load_split(sources, seed=experiment.seed, transcripts=data.transcripts)
        if prompt is not None and template_columns(prompt) <= set(dataset.column_names):
            dataset = load_split(sources, prompt=prompt, seed=experiment.seed, transcripts=data.transcripts)
    else:
        sources = training_sources(data)
        dataset = load_split(sources, prompt=prompt, seed=experiment.seed, transcripts=data.transcripts)
        if data.eval is not None and data.eval.fraction is not None:
            dataset = hold_out(dataset, data.eval.fraction, experiment.seed)[1]
        elif or_training:
            warning = "these are TRAINING rows: the run held out none (data.eval.fraction=0.1 does, or use --data FILE)"
        else:
            raise ConfigError("no evaluation rows", where="data.eval", expected="--data FILE")
    if experiment.reward_model is not None and experiment.reward_model.on_bad_pair == "drop":
        # A file of other rows (`--data`) may have no pairs: whoever needs them says so.
        bad = bad_pairs(dataset) if {"chosen", "rejected"} <= set(dataset.column_names) else {}
        dataset = dataset.select([index for index in range(len(dataset)) if index not in bad])
    check_rows(dataset, [needs], "the evaluation rows")
    return _spread(dataset, limit), warning


def load_training(experiment: Experiment, *, limit: int | None) -> list[Row]:
    """Return the rows that training learns from, without those it holds out; `limit` of them, evenly spread.

    Raises DataError for rows that cannot be had.
    """
    data = experiment.data
    prompt = data.model_dump()["prompt"]
    dataset = load_split(training_sources(data), prompt=prompt, seed=experiment.seed, transcripts=data.transcripts)
    if data.eval is not None and data.eval.fraction is not None:
        dataset = hold_out(dataset, data.eval.fraction, experiment.seed)[0]
    check_rows(dataset, ["prompt"], "the training rows")
    return _spread(dataset, limit)


def _spread(dataset: datasets.Dataset, limit: int | None) -> list[Row]:
    if limit is not None and limit < len(dataset):
        dataset = dataset.select([index * len(dataset) // limit for index in range(limit)])
    rows: list[Row] = dataset.to_list()
    return rows
