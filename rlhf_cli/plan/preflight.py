"""Checks everything about an experiment that can be known before torch is imported; reports all problems at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from rlhf_cli.config.compose import Composed
from rlhf_cli.config.imported_code import imported_code, imported_since
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.config.schema.reward_sections import AGGREGATES
from rlhf_cli.errors import Problems, UserError, raise_any
from rlhf_cli.plan import workload
from rlhf_cli.plan.checks import argument_checks as arguments
from rlhf_cli.plan.checks import data_checks as data
from rlhf_cli.plan.checks import hub_checks as hub
from rlhf_cli.plan.checks import machine_checks as machine
from rlhf_cli.plan.checks import model_checks as model
from rlhf_cli.plan.checks import prompt_checks as prompts
from rlhf_cli.plan.checks import reward_checks as rewards
from rlhf_cli.plan.checks.check_context import Check, CheckContext
from rlhf_cli.plan.devices import planned_device, planned_processes, runs_on_cpu
from rlhf_cli.plan.reward_components import describe_scorer, relative_to_cwd
from rlhf_cli.plan.run_plan import Plan
from rlhf_cli.runs.tracking.tracking_plan import plan_tracking


def _checks(experiment: Experiment) -> Iterator[Check]:
    """Yield the checks of an experiment, in order: each check can use what earlier checks have noted."""
    trainer, critic, launch = experiment.trainer, experiment.critic, experiment.launch
    yield from (arguments.range_problems, arguments.contradictions, arguments.refused_combinations)
    yield from (arguments.typed_twice, hub.hub_problems)
    yield model.policy_problems
    has_folders = experiment.model.path is not None or any(one.model is not None for one in experiment.rewards.values())
    if has_folders or (critic is not None and critic.init != "policy"):
        yield model.weight_problems
    if experiment.model.lora is not None:
        yield model.adapter_problems
    yield from (arguments.package_problems, data.source_problems, rewards.reward_problems)
    if experiment.aggregate not in AGGREGATES:
        yield rewards.aggregate_problems
    if trainer.passes == "packed":
        yield model.passes_problems
    if critic is not None and critic.init != "policy":
        yield model.critic_problems
    if trainer.row.generates:
        yield from (data.column_problems, arguments.round_problems)
    yield from (data.row_problems, prompts.tokenizer_problems, prompts.template_problems)
    yield prompts.text_argument_problems
    if has_folders:
        yield prompts.format_notices
    if has_folders or experiment.reward_model is not None:
        yield prompts.ending_notices
    if trainer.row.generates:
        yield prompts.room_for_answers_problems
    yield from (arguments.stage_problems, arguments.warmup_notice)
    if experiment.data.eval is not None:
        yield arguments.shared_prompt_notice
    yield machine.folder_problems
    if launch.slurm is None and any(str(one.fn).startswith(machine.RUNS_CODE) for one in experiment.rewards.values()):
        yield machine.sandbox_problems
    yield from (machine.gpu_problems, machine.environment_problems)
    if launch.rollout.startswith("vllm") or launch.accelerate_config is not None:
        yield machine.launch_problems
    if launch.precision == "bf16" and launch.slurm is None:
        yield machine.precision_notice
    if trainer.row.generates and launch.rollout == "hf" and experiment.model.build is None:
        yield machine.rollout_notice
    if launch.nodes > 1:
        yield machine.network_notice


def preflight(
    experiment: Experiment,
    composed: Composed,
    *,
    folder: Path | None = None,
    is_shown: bool = True,
    tries_rewards: bool = False,
) -> Plan:
    """Check an experiment as far as possible without torch, and return its plan.

    `folder` is that of a resumed run; None for a new one, which will be created in `run.root`. `is_shown` says that the
    whole plan is wanted; a run that only starts needs no estimate of its memory, unless it has to fit on a GPU.
    `tries_rewards` calls the reward functions on a row, unless something else is wrong.

    Raise Problems, or the UserError itself if there is only one. Problems include a missing data file, column, reward
    function or model folder, batch sizes that do not divide, and a run folder that is not writable.
    """
    context = CheckContext(experiment, planned_processes(experiment.launch), folder)
    problems: dict[str, UserError] = {}  # by its text: two checks may read the same bad file
    for check in _checks(experiment):
        try:
            for problem in check(experiment, composed, context) or ():
                problems[str(problem)] = problem
        except Problems as error:
            problems |= {str(problem): problem for problem in error.problems}
        except UserError as error:
            problems[str(error)] = error
    raise_any(list(problems.values()))
    if tries_rewards:
        from rlhf_cli.plan.checks.reward_trial import trial_problems

        raise_any(trial_problems(experiment, composed, context))
    is_chat = prompts.has_conversations(experiment, context)
    files = imported_code(experiment) | imported_since(context.modules, experiment)
    plan = Plan(
        model=relative_to_cwd(context.model),
        data=relative_to_cwd(context.data),
        columns=context.columns,
        unread=data.unread_columns(experiment, context),
        num_rows=context.num_rows,
        rewards={name: describe_scorer(reward, is_chat=is_chat) for name, reward in experiment.rewards.items()},
        processes=context.processes,
        batches=context.batches,
        stage=context.stage,
        tracking=plan_tracking(experiment.track.mode, experiment.track.tracker),
        files=context.files | {name: file for name, file in files.items() if file not in context.files.values()},
        accelerate_env=context.accelerate_env,
        notices=tuple(context.notices),
        workload=workload.workload(context),
        num_held_out=context.num_held_out,
    )
    if not is_shown and runs_on_cpu(experiment.launch):
        return plan
    from rlhf_cli.plan.memory_estimate import RunMemory
    from rlhf_cli.plan.row_lengths import longest_rows

    lengths, passes = longest_rows(experiment, context), model.planned_passes(experiment, context)
    # If it is unknown how rows will go through the models, assume TRL's way, which needs the most memory.
    batches, mode = context.batches, passes.mode if passes is not None else "plain"
    completions = batches.per_device * batches.steps_per_generation if batches is not None else 0
    device = planned_device(experiment.launch, context.processes)
    return replace(
        plan,
        passes=passes,
        memory=RunMemory(experiment, lengths, completions, device, mode, context.folder_of).plan(),
        workload=workload.workload(context, lengths),
        evaluations=workload.evaluations(context),
        checkpoints=workload.checkpoints(context),
    )
