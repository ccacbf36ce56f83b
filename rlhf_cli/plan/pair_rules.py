"""Translates the section `reward_model` into the rules for preference pairs in rlhf_cli.data."""

from __future__ import annotations

from collections.abc import Sequence

from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.config.schema.reward_model_section import RewardModel
from rlhf_cli.data.margins import MarginRule
from rlhf_cli.data.preferences import PreferenceRules
from rlhf_cli.data.template import missing_column
from rlhf_cli.errors import UserError


def preference_rules(experiment: Experiment) -> PreferenceRules:
    """Return the rules for the pairs of an experiment; the defaults if it has no section `reward_model`."""
    section = experiment.reward_model or RewardModel()
    margin = None
    if section.margin is not None:
        values = section.margin.model_dump(exclude={"on_bad"})
        margin = MarginRule(**values, drops=section.margin.on_bad == "drop")
    return PreferenceRules(margin, drops_bad_pairs=section.on_bad_pair == "drop")


def margin_problems(experiment: Experiment, columns: Sequence[str]) -> list[UserError]:
    """Return an error for each column that a margin is computed from and the data lacks.

    The list is empty if the columns are not known yet.
    """
    rules = preference_rules(experiment)
    if not columns or rules.margin is None:
        return []
    return [
        missing_column(column, columns, "reward_model.margin")
        for column in rules.margin.columns
        if column not in columns
    ]
