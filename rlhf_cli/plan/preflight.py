"""Checks everything about an experiment that can be known before torch is imported; reports all problems at once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rlhf_cli.config.compose import Composed
from rlhf_cli.config.imported_code import imported_code, imported_since
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.errors import Problems, UserError
from rlhf_cli.plan.checks.argument_checks import (
    best_model_problems,
    no_step_problems,
    package_problems,
    range_problems,
    repeated_notice,
)
from rlhf_cli.plan.checks.batch_checks import evaluation_cost, round_problems, shared_prompt_notice, stage_problems
from rlhf_cli.plan.checks.data_checks import class_file_problems, column_problems, row_problems, source_problems
from rlhf_cli.plan.checks.hub_checks import hub_problems
from rlhf_cli.plan.checks.known import Check, Known, nothing_known
from rlhf_cli.plan.checks.machine_checks import (
    machine_problems,
    precision_notice,
    room_problems,
    sandbox_problems,
    tracker_problems,
    unwritable_problems,
)
from rlhf_cli.plan.checks.model_checks import (
    adapter_problems,
    critic_problems,
    passes_problems,
    policy_problems,
    weight_problems,
)
from rlhf_cli.plan.checks.prompt_checks import format_notices, room_for_answers_problems, tokenizer_problems
from rlhf_cli.plan.checks.reward_checks import aggregate_problems, missing_argument_problems, reward_problems
from rlhf_cli.plan.planned_memory import longest_rows, planned_memory, planned_passes
from rlhf_cli.plan.reward_components import from_here, scored_by
from rlhf_cli.plan.run_plan import Plan
from rlhf_cli.plan.workload import checkpoints, evaluations, workload
from rlhf_cli.runs.tracking.tracking_plan import plan_tracking

CHECKS: tuple[Check, ...] = (
    range_problems,
    repeated_notice,
    best_model_problems,
    hub_problems,
    policy_problems,
    weight_problems,
    adapter_problems,
    package_problems,
    source_problems,
    class_file_problems,
    reward_problems,
    aggregate_problems,
    passes_problems,
    critic_problems,
    column_problems,
    missing_argument_problems,
    round_problems,
    row_problems,
    tokenizer_problems,
    format_notices,
    room_for_answers_problems,
    stage_problems,
    no_step_problems,
    evaluation_cost,
    shared_prompt_notice,
    unwritable_problems,
    room_problems,
    tracker_problems,
    sandbox_problems,
    precision_notice,
    machine_problems,
)
"""The checks of every experiment, in order: each check can use what earlier checks have noted."""


def preflight(experiment: Experiment, composed: Composed, *, folder: Path | None = None) -> Plan:
    """Check an experiment as far as possible without torch, and return its plan.

    `folder` is that of a resumed run; None for a new one, which will be created in `run.root`.

    Raise Problems, or the UserError itself if there is only one. Problems include a missing data file, column, reward
    function or model folder, batch sizes that do not divide, and a run folder that is not writable.
    """
    known = nothing_known(experiment, folder)
    found = [problem for check in CHECKS for problem in _found_by(check, experiment, composed, known)]
    problems = list({str(problem): problem for problem in found}.values())  # two checks may read the same bad file
    if len(problems) == 1:
        raise problems[0]
    if problems:
        raise Problems(problems)
    assert known.machine is not None
    lengths = longest_rows(experiment, known)
    passes = planned_passes(experiment, known)
    return Plan(
        model=from_here(known.model),
        data=from_here(known.data),
        columns=known.columns,
        num_rows=known.num_rows,
        rewards={name: scored_by(reward) for name, reward in experiment.rewards.items()},
        processes=known.processes,
        batches=known.batches,
        stage=known.stage,
        tracking=plan_tracking(experiment.track.mode, experiment.track.tracker),
        files=known.files | _imported(experiment, known),
        machine=known.machine,
        notices=tuple(known.notices),
        memory=planned_memory(experiment, known, lengths, passes),
        workload=workload(experiment, known, lengths),
        evaluations=evaluations(experiment, known),
        checkpoints=checkpoints(experiment, known),
        num_held_out=known.num_held_out,
        passes=passes,
    )


def _imported(experiment: Experiment, known: Known) -> dict[str, Path]:
    """Return the user's files that the configured code imports, except files that already have their own entry."""
    files = imported_code(experiment) | imported_since(known.modules, experiment)
    return {name: file for name, file in files.items() if file not in known.files.values()}


def _found_by(check: Check, experiment: Experiment, composed: Composed, known: Known) -> Iterator[UserError]:
    """Yield the problems that a check yields, then those that it raises."""
    try:
        yield from check(experiment, composed, known)
    except Problems as error:
        yield from error.problems
    except UserError as error:
        yield error
