"""Translate the sections `data` and `reward_model` into what the data room takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rlhf_cli.config.schema import model_and_data as schema
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.config.schema.reward_sections import RewardModel
from rlhf_cli.data.source import DataSource, missing_column
from rlhf_cli.errors import UserError

if TYPE_CHECKING:
    from rlhf_cli.data.preferences import PairRules


def training_sources(experiment: Experiment) -> list[DataSource]:
    """Return the sources of the training rows: a single source, or one per member of the mix."""
    data = experiment.data
    if data.mix is not None:
        return [_source(experiment, member, f"data.mix.{name}") for name, member in data.mix.items()]
    return [_source(experiment, data, "data")]


def eval_sources(experiment: Experiment) -> list[DataSource]:
    """Return the held-out source in a list.

    The list is empty if held-out rows are a fraction of the training rows, or if there are no held-out rows.
    """
    held_out = experiment.data.eval
    return [] if held_out is None or held_out.fraction is not None else [_source(experiment, held_out, "data.eval")]


def _source(experiment: Experiment, section: schema.Source, name: str) -> DataSource:
    given = {key: getattr(section, key) for key in schema.Source.model_fields}
    return DataSource(**given, name=name, transcripts=experiment.data.transcripts, trainer=experiment.trainer.row)


def describe_eval_rows(data: schema.Data) -> str:
    """Describe in words which rows an evaluation runs on."""
    if data.eval is None:
        return "training rows"
    if data.eval.fraction is not None:
        return f"the {data.eval.fraction:.0%} held out"
    return str(data.eval.world or data.eval.path)


def preference_rules(experiment: Experiment) -> PairRules:
    """Return the rules for the pairs of an experiment; the defaults if it has no section `reward_model`."""
    from rlhf_cli.data.preferences import PairRules

    section = experiment.reward_model or RewardModel()
    drops_bad_pairs = section.on_bad_pair == "drop"
    if section.margin is None:
        return PairRules(drops_bad_pairs=drops_bad_pairs)
    values = section.margin.model_dump(exclude={"on_bad"})
    return PairRules(**values, drops_bad_margins=section.margin.on_bad == "drop", drops_bad_pairs=drops_bad_pairs)


def margin_problems(experiment: Experiment, columns: Sequence[str]) -> list[UserError]:
    """Return an error for each column that a margin is computed from and the data lacks.

    The list is empty if the columns are not known yet.
    """
    wanted = preference_rules(experiment).columns if columns else ()
    return [missing_column(column, columns, "reward_model.margin") for column in wanted if column not in columns]
