"""Checks that the horizon of an adaptive KL coefficient is long enough for the size of a round."""

from __future__ import annotations

from rlhf_cli.config.origins import Origins
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.errors import ConfigError
from rlhf_cli.plan.rollout_batches import BatchPlan
from rlhf_cli.tables.kl_forms import MAX_RELATIVE_ERROR


def check_kl_controller(experiment: Experiment, batches: BatchPlan, origins: Origins) -> list[ConfigError]:
    """Return an error if one round could change the coefficient by more than 100%, and so make it negative.

    The list is empty if the horizon is long enough or the coefficient is fixed.
    """
    kl = experiment.kl
    if kl is None or kl.controller == "fixed":
        return []
    rows = batches.completions_a_round
    if kl.controller.horizon > MAX_RELATIVE_ERROR * rows:
        return []
    return [
        ConfigError(
            "the horizon of the KL controller is shorter than a round: one could make the coefficient negative",
            where=origins.where("kl.controller.horizon"),
            got=f"{kl.controller.horizon} completions, and a round has {rows}",
            expected=f"more than {MAX_RELATIVE_ERROR * rows:g}; 20 rounds or more steer smoothly",
            hint=f"kl.controller.horizon={20 * rows}",
        )
    ]
