"""Checks the batch arithmetic: the completions of a round, or the rows of a step."""

from __future__ import annotations

from collections.abc import Iterator

from rlhf_cli.config.compose import Composed
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.errors import UserError
from rlhf_cli.plan.checks.known import Known
from rlhf_cli.plan.kl_horizon import check_kl_controller
from rlhf_cli.plan.rollout_batches import plan_batches
from rlhf_cli.plan.row_batches import check_stage
from rlhf_cli.plan.run_plan import Notice


def round_problems(experiment: Experiment, composed: Composed, known: Known) -> Iterator[UserError]:
    """Plan the rounds of a trainer that generates, and note if their split depends on the number of processes.

    Raises the errors of `plan_batches`.
    """
    if not experiment.trainer.row.generates:
        return
    known.batches = plan_batches(
        known.trainer,
        experiment.trainer.args,
        processes=known.processes,
        num_rows=known.num_rows,
        origins=composed.origins,
        baseline=experiment.trainer.baseline,
    )
    if known.processes > 1 and known.batches.accumulation < known.batches.steps_per_generation:
        text = (
            f"each of the {known.processes} processes shuffles its own rows of a round into minibatches (TRL's way), "
            "so another number of processes ends in slightly other weights"
        )
        known.notices.append(Notice("minibatches", text))
    yield from check_kl_controller(experiment, known.batches, composed.origins)


def stage_problems(experiment: Experiment, composed: Composed, known: Known) -> Iterator[UserError]:
    """Plan the steps of a trainer that trains on its rows, and yield what is wrong with them."""
    known.stage, problems = check_stage(
        experiment,
        known.trainer,
        known.columns,
        processes=known.processes,
        num_rows=known.num_rows,
        origins=composed.origins,
    )
    yield from problems
