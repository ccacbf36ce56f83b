"""Checks the keys for training a reward model against each other."""

from __future__ import annotations

from collections.abc import Iterator

from rlhf_cli.config.origins import Origins
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.errors import ConfigError, UserError


def reward_model_problems(experiment: Experiment, origins: Origins) -> Iterator[UserError]:
    """Yield every problem with a section `reward_model`."""
    section = experiment.reward_model
    if section is None:
        return
    if "reward_model" not in experiment.trainer.row.sections:
        yield ConfigError(
            f"trainer={experiment.trainer.name} trains no reward model",
            where=origins.where("reward_model"),
            got="a section `reward_model`",
            expected="trainer.trl=RewardTrainer, which is the one that reads it",
            hint="trainer=reward, or ~reward_model",
        )
    margin = section.margin
    if margin is not None and margin.chosen is not None and margin.chosen == margin.rejected:
        yield ConfigError(
            "a score less itself is no margin",
            where=origins.where("reward_model.margin.rejected"),
            got=f"{margin.rejected}, as reward_model.margin.chosen",
            expected="the columns of two scores",
            hint="reward_model.margin.rejected=COLUMN",
        )
