"""Check everything about an experiment that can be known before torch is imported; report all problems at once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from rlhf_cli.config.compose import Composed
from rlhf_cli.config.imported_code import imported_code, imported_since
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.errors import looking, raise_any
from rlhf_cli.plan import row_tokens, workload
from rlhf_cli.plan.batches import AnyPlan, BatchPlan, StagePlan
from rlhf_cli.plan.checks import argument_checks, data_checks, machine_checks, model_checks, reward_checks
from rlhf_cli.plan.checks import prompt_checks as prompts
from rlhf_cli.plan.checks.facts import DataFacts, Report, RewardFacts, Subject
from rlhf_cli.plan.devices import planned_device, planned_processes
from rlhf_cli.plan.run_plan import Plan
from rlhf_cli.plan.sources_and_components import describe_scorer, relative_to_cwd
from rlhf_cli.runs.tracking.tracked_run import plan_tracking
from rlhf_cli.tables.passes import PassMode
from rlhf_cli.user_files import class_file


def preflight(
    experiment: Experiment,
    composed: Composed,
    *,
    folder: Path | None = None,
    is_shown: bool = True,
    tries_rewards: bool = False,
) -> Plan:
    """Check an experiment as far as possible without torch, and return its plan; raise its UserError, or Problems.

    `folder` is that of a resumed run; None for a new one, which will be created in `run.root`. `is_shown` says that the
    whole plan is wanted; a run that only starts needs no estimate of its memory, unless it has to fit on a GPU.
    `tries_rewards` calls the reward functions on a row, unless there is another problem.
    """
    subject, report = Subject(experiment, composed, planned_processes(experiment.launch), folder), Report()
    with looking():
        checked = _check(subject, report)
    raise_any(report.problems.values())
    if tries_rewards:
        _try_rewards(subject, report, checked.data)
    assert checked.steps is not None, "without a plan there is a problem"
    subject, data, plan, trainer = checked.subject, checked.data, checked.steps, experiment.trainer
    device, rewards = planned_device(experiment.launch, subject.processes), experiment.rewards
    lengths = memory = None
    # If it is unknown how rows will go through the models, assume TRL's way, which needs the most memory.
    passes = model_checks.planned_passes(subject)
    mode: PassMode = passes.mode if passes is not None else "plain"
    at_once = plan.per_device * (plan.steps_per_generation if isinstance(plan, BatchPlan) else plan.accumulation)
    completions = at_once if trainer.row.generates or trainer.row.answers_up_to else 0
    if is_shown or device.on_gpu:
        from rlhf_cli.plan.memory_estimate import RunMemory

        lengths = row_tokens.longest_rows(subject, data, checked.prompt_tokens)
        memory = RunMemory(experiment, lengths, completions, device, mode, subject.folder_of).plan()
    is_chat = prompts.has_conversations(experiment, data)
    return Plan(
        model=relative_to_cwd(checked.described),
        data=relative_to_cwd(data.described),
        columns=data.columns,
        unread=data_checks.unread_columns(experiment, data, checked.used),
        num_rows=data.num_rows,
        rewards={name: describe_scorer(reward, is_chat=is_chat) for name, reward in rewards.items()},
        processes=subject.processes,
        batches=plan if isinstance(plan, BatchPlan) else None,
        stage=plan if isinstance(plan, StagePlan) else None,
        tracking=plan_tracking(experiment.track.mode, experiment.track.tracker),
        files=_files(checked),
        accelerate_env=checked.accelerate_env,
        notices=tuple(report.notices),
        memory=memory,
        workload=workload.workload(trainer, plan, data.num_rows, lengths),
        evaluations=workload.evaluations(trainer, plan, data.num_held_out),
        checkpoints=workload.checkpoints(subject, plan),
        num_held_out=data.num_held_out,
        passes=passes,
    )


def _try_rewards(subject: Subject, report: Report, data: DataFacts) -> None:
    """Call the rewards on a row, and play an episode; raise their errors."""
    report.run_all(reward_checks.trial_problems(subject, data))
    if subject.experiment.interacts:
        from rlhf_cli.plan.checks.tool_checks import episode_problems

        report.run_all(episode_problems(subject, data))
    raise_any(report.problems.values())


@dataclass
class _Checked:
    """The facts of all checks. `used` are the columns that the trainer reads; a prompt has at most `prompt_tokens`."""

    subject: Subject
    described: str
    data: DataFacts
    files: dict[str, Path]
    steps: AnyPlan | None
    used: frozenset[str]
    prompt_tokens: int | None
    accelerate_env: dict[str, str]


def _check(subject: Subject, report: Report) -> _Checked:
    """Run all checks; each takes the facts of those before it."""
    report.run_all(*argument_checks.of_words(subject), machine_checks.upload_problems(subject))
    subject = replace(subject, cached=report.run(machine_checks.hub_problems(subject), {}))
    described = report.run(model_checks.policy_problems(subject), "")
    report.run_all(
        model_checks.config_problems(subject),
        model_checks.weight_problems(subject),
        model_checks.adapter_problems(subject),
        argument_checks.package_problems(subject),
    )
    data = report.run(data_checks.source_problems(subject), DataFacts())
    rewards = report.run(reward_checks.reward_problems(subject, data), RewardFacts())
    functions = report.run(reward_checks.function_problems(subject), {})
    if subject.experiment.interacts:
        from rlhf_cli.plan.checks import tool_checks

        functions |= report.run(tool_checks.interaction_problems(subject), {})
        report.run_all(tool_checks.conversation_problems(subject, data))
    report.run_all(
        reward_checks.unfed_problems(subject, rewards),
        model_checks.critic_problems(subject),
        data_checks.column_problems(subject, data, rewards),
        data_checks.value_problems(data, rewards),
    )
    used, data = report.run(data_checks.row_problems(subject, data), (frozenset[str](), data))
    subject = replace(subject, tokenizer=report.run(prompts.tokenizer_problems(subject, data), None))
    subject = replace(subject, tokenizer=report.run(row_tokens.assistant_problems(subject, data), subject.tokenizer))
    report.run_all(
        prompts.template_problems(subject, data, used),
        prompts.text_argument_problems(subject),
        prompts.format_notices(subject, data),
        prompts.image_problems(subject, data),
    )
    if subject.experiment.interacts:
        report.run_all(tool_checks.call_problems(subject))
    report.run_all(model_checks.teacher_problems(subject))
    prompt_tokens, data = report.run(prompts.room_for_answers_problems(subject, data), (None, data))
    report.run_all(
        row_tokens.vocabulary_problems(subject, data),
        row_tokens.start_notices(subject, data),
        row_tokens.end_notices(subject, data),
        row_tokens.context_problems(subject, data),
    )
    data = report.run(row_tokens.length_problems(subject, data), data)
    steps = report.run(argument_checks.step_problems(subject, data, rewards), None)
    report.run_all(
        argument_checks.length_notices(subject, steps.steps if steps else None),
        argument_checks.shared_prompt_notice(data),
        workload.evaluation_notice(subject, steps, data),
        machine_checks.folder_problems(subject, steps.steps if steps else None),
        machine_checks.deadline_problems(subject),
        machine_checks.sandbox_problems(subject),
        machine_checks.gpu_problems(subject),
    )
    accelerate_env = report.run(machine_checks.launch_problems(subject), {})
    files = {**data.files, **rewards.files, **functions}
    return _Checked(subject, described, data, files, steps, used, prompt_tokens, accelerate_env)


def _files(checked: _Checked) -> dict[str, Path]:
    """Return key -> file of all that the run reads and whose hash goes into the provenance."""
    subject, files = checked.subject, checked.files
    experiment, trainer = subject.experiment, subject.experiment.trainer
    named = {"trainer.class": trainer.own_class} if trainer.own_class is not None else {}
    named |= {f"trainer.callbacks[{number}]": callback for number, callback in enumerate(trainer.callbacks)}
    files |= {key: file.resolve() for key, name in named.items() if (file := class_file(name)) is not None}
    if (accelerate := experiment.launch.accelerate_config) is not None:
        files["launch.accelerate_config"] = Path(accelerate).expanduser().resolve()
    has_own = experiment.has_reference or experiment.model.lora is not None
    for key, path in subject.named_models().items():  # a resumed run reads these again: checkpoints lack them
        if key != "critic.init" and (key != "model.path" or has_own) and Path(path).expanduser().is_dir():
            files[key] = Path(path).expanduser().resolve()
    code = imported_code(experiment) | imported_since(subject.modules, experiment)
    return files | {name: file for name, file in code.items() if file not in files.values()}
