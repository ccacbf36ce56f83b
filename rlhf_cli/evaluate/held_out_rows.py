"""Loads the rows an evaluation runs on: those the run held out, else a source of their own, else the training rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.data.loading import load_split
from rlhf_cli.data.preferences import bad_pairs
from rlhf_cli.data.rows import check_rows, hold_out
from rlhf_cli.data.same_prompts import describe_shared, prompt_key, shared_prompts
from rlhf_cli.data.template import template_columns
from rlhf_cli.errors import ConfigError, UserError
from rlhf_cli.measure.preference_pairs import Row
from rlhf_cli.plan.data_sources import eval_sources, training_sources

if TYPE_CHECKING:
    import datasets


@dataclass(frozen=True)
class HeldOut:
    """Holds the rows of an evaluation, and the `prompt_key` of those that were also trained on, None if unknown."""

    rows: list[Row]
    trained_on: frozenset[bytes] | None
    warnings: list[str]

    @property
    def num_trained_on(self) -> int | None:
        """Return how many rows have a prompt that was also trained on; None where nobody knows."""
        return None if self.trained_on is None else sum(prompt_key(row) in self.trained_on for row in self.rows)


def load_held_out(
    experiment: Experiment, *, needs: str, limit: int | None, or_training: bool, trained: Experiment | None = None
) -> HeldOut:
    """Return the rows, with warnings about where they come from. Column `needs` has something in every row.

    A fraction that training held out is the same again: same data, same seed, same rows; without equal and empty
    answers where training left these out. `limit`: so many rows, evenly spread over all; None for all of them.
    `or_training`: where nothing was held out, take the training rows. `trained` is what the model was trained by, None
    where nobody knows: the prompts that are among its training rows are counted.

    Raises DataError for rows that cannot be had, ConfigError where none are named.
    """
    data, warnings = experiment.data, list[str]()
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
            warnings.append(
                "these are TRAINING rows: the run held out none (data.eval.fraction=0.1 does, or --data FILE)"
            )
        else:
            raise ConfigError("no evaluation rows", where="data.eval", expected="--data FILE")
    if experiment.reward_model is not None and experiment.reward_model.on_bad_pair == "drop":
        # A file of other rows (`--data`) may have no pairs: whoever needs them says so.
        bad = bad_pairs(dataset) if {"chosen", "rejected"} <= set(dataset.column_names) else {}
        dataset = dataset.select([index for index in range(len(dataset)) if index not in bad])
    check_rows(dataset, [needs], "the evaluation rows")
    dataset = _spread(dataset, limit)
    trained_on: frozenset[bytes] | None = None
    try:
        trained_on = None if trained is None else shared_prompts(dataset, [_training_set(trained)])
    except UserError as error:
        warnings.append(f"the training rows cannot be read, so shared prompts are not counted: {error.what}")
    held_out = HeldOut(dataset.to_list(), trained_on, warnings)
    if (count := held_out.num_trained_on) and not warnings:
        warnings.append(describe_shared(count, len(held_out.rows)))
    return held_out


def load_training(experiment: Experiment, *, limit: int | None) -> list[Row]:
    """Return the rows that training learns from, without those it holds out; `limit` of them, evenly spread.

    Raises DataError for rows that cannot be had.
    """
    dataset = _training_set(experiment)
    check_rows(dataset, ["prompt"], "the training rows")
    rows: list[Row] = _spread(dataset, limit).to_list()
    return rows


def _training_set(experiment: Experiment) -> datasets.Dataset:
    data = experiment.data
    prompt = data.model_dump()["prompt"]
    dataset = load_split(training_sources(data), prompt=prompt, seed=experiment.seed, transcripts=data.transcripts)
    if data.eval is not None and data.eval.fraction is not None:
        return hold_out(dataset, data.eval.fraction, experiment.seed)[0]
    return dataset


def _spread(dataset: datasets.Dataset, limit: int | None) -> datasets.Dataset:
    if limit is None or limit >= len(dataset):
        return dataset
    spread: datasets.Dataset = dataset.select([index * len(dataset) // limit for index in range(limit)])
    return spread
