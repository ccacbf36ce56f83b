"""Checks everything about an experiment that can be known before torch is imported, and reports it all together."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rlhf_cli.config import trl_args
from rlhf_cli.config.compose import Composed
from rlhf_cli.config.rules.trainer_class_rules import class_file
from rlhf_cli.config.schema.data_section import Message
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.config.schema.reward_section import AGGREGATES, Reward
from rlhf_cli.data.columns import column_names_after
from rlhf_cli.data.peeking import Preview, peek
from rlhf_cli.data.source import Source
from rlhf_cli.errors import DataError, Problems, RewardError, RunError, UserError
from rlhf_cli.models.model_folders import (
    TINY_VOCABULARY,
    Policy,
    describe_critic,
    describe_reward_model,
    read_policy,
)
from rlhf_cli.plan.checkpoint_space import space_problems
from rlhf_cli.plan.data_sources import eval_sources, training_sources
from rlhf_cli.plan.devices import planned_processes
from rlhf_cli.plan.kl_horizon import check_kl_controller
from rlhf_cli.plan.launch_problems import Machine, look_at_machine
from rlhf_cli.plan.pair_rules import margin_problems
from rlhf_cli.plan.policy_model import describe_policy
from rlhf_cli.plan.reward_components import scored_by
from rlhf_cli.plan.rollout_batches import BatchPlan, plan_batches
from rlhf_cli.plan.row_batches import StagePlan, check_stage
from rlhf_cli.stack.reward_functions import import_function, required_columns, resolve, source_file
from rlhf_cli.suggest import nearest
from rlhf_cli.tracking.tracking_plan import TrackingPlan, missing_tracker, plan_tracking


@dataclass(frozen=True)
class Plan:
    """A plan that says what a run will do.

    `columns` is empty and `num_rows` None where a hub dataset decides. `batches` is None for a trainer that does not
    generate, `stage` for one that does.
    """

    model: str
    data: str
    columns: tuple[str, ...]
    num_rows: int | None
    rewards: dict[str, str]
    """Maps each reward's name to what scores it."""
    processes: int
    batches: BatchPlan | None
    stage: StagePlan | None
    """Holds the numbers of a trainer that learns from its rows and does not generate."""
    tracking: TrackingPlan
    files: dict[str, Path]
    """Names the reward code, the data files and accelerate's, for the hashes in the provenance."""
    machine: Machine
    space_notice: str | None = None
    """Says that not all checkpoints will fit on the disk; None where they do, or where nobody can say."""


def preflight(experiment: Experiment, composed: Composed, *, folder: Path | None = None) -> Plan:
    """Check an experiment as far as that is possible without torch, and return what it would do.

    `folder` is that of a run that goes on, None for a new one, which will lie somewhere in `run.root`.

    Raises Problems, or the single UserError where there is only one: a data file, a column, a reward function, a model
    folder, batch sizes that do not divide, a run folder that cannot be written to.
    """
    problems: list[UserError] = []
    trainer = trl_args.trainer(experiment.trainer.trl)
    processes = planned_processes(experiment.launch)
    model = data = ""
    files: dict[str, Path] = {}
    columns: tuple[str, ...] = ()
    num_rows: int | None = None
    batches = None
    try:
        model = describe_policy(experiment, composed)
    except UserError as error:
        problems.append(error)
    try:
        columns, num_rows, data = _data(experiment)
        files = _local_files(experiment)
        if experiment.trainer.own_class is not None and (file := class_file(experiment.trainer.own_class)) is not None:
            files["trainer.class"] = file.resolve()
    except UserError as error:
        problems.append(error)
    if experiment.aggregate not in AGGREGATES and (code := source_file(experiment.aggregate)) is not None:
        files["aggregate"] = code
    required: dict[str, list[str]] = {}
    for name, reward in experiment.rewards.items():
        try:
            required[name] = _reward(name, reward, composed, files, experiment.data.prompt)
        except UserError as error:
            problems.append(error)
    for check in (_aggregate, functools.partial(_critic, composed=composed)):
        try:
            check(experiment)
        except UserError as error:
            problems.append(error)
    if experiment.trainer.row.generates:
        if columns:
            problems += _missing_columns(
                {
                    f"trainer={experiment.trainer.name}": ["prompt"],
                    **{f"rewards.{name}": needs for name, needs in required.items()},
                },
                columns,
            )
        try:
            batches = plan_batches(
                trainer,
                experiment.trainer.args,
                processes=processes,
                num_rows=num_rows,
                origins=composed.origins,
                baseline=experiment.trainer.baseline,
            )
            problems += check_kl_controller(experiment, batches, composed.origins)
        except UserError as error:
            problems.append(error)
    problems += margin_problems(experiment, columns)
    stage, stage_problems = check_stage(
        experiment, trainer, columns, processes=processes, num_rows=num_rows, origins=composed.origins
    )
    known = stage.steps if stage is not None else batches.steps if batches is not None else None
    no_space, space_notice = space_problems(experiment, known, folder)
    problems += [*stage_problems, *_unwritable(folder, experiment.run.root), *no_space]
    track = experiment.track
    missing = missing_tracker(track.mode, track.tracker, where=composed.origins.where("track.tracker"))
    problems += [missing] if missing is not None else []
    here = look_at_machine(experiment, composed.origins)
    problems += here.problems
    files |= here.files
    if len(problems) == 1:
        raise problems[0]
    if problems:
        raise Problems(problems)
    return Plan(
        model=model,
        data=data,
        columns=columns,
        num_rows=num_rows,
        rewards={name: scored_by(reward) for name, reward in experiment.rewards.items()},
        processes=processes,
        batches=batches,
        stage=stage,
        tracking=plan_tracking(track.mode, track.tracker),
        files=files,
        machine=here,
        space_notice=space_notice,
    )


def _critic(experiment: Experiment, composed: Composed) -> None:
    """Look at what the critic is to start from. Raises ModelError where it is no critic, or not one for this policy."""
    critic, model = experiment.critic, experiment.model
    if critic is None or critic.init == "policy":
        return
    if model.build is not None:
        policy = Policy(model.build.hidden_size, TINY_VOCABULARY)
    else:
        assert model.path is not None
        policy = read_policy(model.path, model.tokenizer, where=composed.origins.where("model.path"))
    describe_critic(critic.init, policy, where=composed.origins.where("critic.init"))


def _data(experiment: Experiment) -> tuple[tuple[str, ...], int | None, str]:
    """Look at training and eval source alike; return (columns the trainer will see, training rows, a description)."""
    data = experiment.data
    prompt = data.model_dump()["prompt"]
    seen: list[tuple[Source, Preview, tuple[str, ...]]] = []
    for source in [*training_sources(data), *eval_sources(data)]:
        preview = peek(source)
        _check_selection(source, preview.num_rows)
        names = column_names_after(preview, source.rename, prompt, name=source.name, transcripts=data.transcripts)
        seen.append((source, preview, names))
    training = seen[: len(training_sources(data))]
    shared = [columns for _, _, columns in training]
    columns = tuple(name for name in shared[0] if all(name in other for other in shared))
    rows = training[0][1].num_rows if len(training) == 1 else None
    if rows is not None:
        # A fraction is held out by prompt, so how many rows are left is known when they are read.
        is_split = data.eval is not None and data.eval.fraction is not None
        rows = None if is_split else _selected(rows, training[0][0])
    described = " + ".join(preview.origin for _, preview, _ in training)
    return columns, rows, described


def _check_selection(source: Source, rows: int | None) -> None:
    is_sliced = source.split is not None and "[" in source.split
    if rows is not None and not is_sliced and source.bounds is not None and source.bounds[1] > rows:
        raise DataError(
            "`select` reaches beyond the last row",
            where=f"{source.name}.select",
            got=source.select,
            expected=f"at most {rows}, the number of rows",
            hint=f"~{source.name}.select for all rows",
        )


def _selected(rows: int, source: Source) -> int | None:
    if source.split is not None and "[" in source.split:
        return None  # a slice of a split: the datasets library counts it
    if source.select is None:
        return rows
    return min(rows, source.select) if isinstance(source.select, int) else source.select[1] - source.select[0]


def _reward(
    name: str, reward: Reward, composed: Composed, files: dict[str, Path], prompt: str | list[Message] | None
) -> list[str]:
    """Return the dataset columns a reward cannot do without."""
    if reward.model is not None:
        where = composed.origins.where(f"rewards.{name}.model")
        describe_reward_model(reward.model, where=where, conversational=isinstance(prompt, list))
        if reward.args:
            raise RewardError("a reward model takes no args", where=composed.origins.where(f"rewards.{name}.args"))
        return []
    assert reward.fn is not None
    function = resolve(
        reward.fn,
        reward.args,
        where=composed.origins.where(f"rewards.{name}.fn"),
        args_key=f"rewards.{name}.args",
        place=composed.origins.where,
    )
    file = source_file(reward.fn)
    if file is not None:
        files[f"rewards.{name}"] = file
    return required_columns(function)


def _aggregate(experiment: Experiment) -> None:
    """Import the user's aggregate. Raises RewardError when that fails or it does not take `rewards` and `weights`."""
    if experiment.aggregate in AGGREGATES:
        return
    function = import_function(experiment.aggregate, where="aggregate")
    parameters = inspect.signature(function).parameters
    if not {"rewards", "weights"} <= set(parameters):
        raise RewardError(
            "the aggregate takes other arguments than it is given",
            where="aggregate",
            got=f"{experiment.aggregate}({', '.join(parameters)})",
            expected="f(rewards, weights): dicts by name, of a list a reward and of a number; one total a row",
        )


def _missing_columns(wanted: dict[str, list[str]], columns: Sequence[str]) -> list[UserError]:
    problems: list[UserError] = []
    for who, needs in wanted.items():
        for column in needs:
            if column not in columns:
                close = nearest(column, columns)
                problems.append(
                    DataError(
                        f"the data has no column {column!r}",
                        where="data",
                        got="columns " + ", ".join(columns),
                        expected=f"{column}, which {who} reads"
                        + (f" (or is it an argument? {who}.args.{column}=VALUE)" if who.startswith("rewards.") else ""),
                        hint=f"data.rename.{column}={close or 'EXISTING_COLUMN'}"
                        + (f", or data.prompt='... {{{columns[0]}}} ...'" if column == "prompt" else ""),
                    )
                )
    return problems


def _local_files(experiment: Experiment) -> dict[str, Path]:
    files: dict[str, Path] = {}
    for source in [*training_sources(experiment.data), *eval_sources(experiment.data)]:
        local = [Path(path).expanduser().resolve() for path in source.paths if Path(path).expanduser().exists()]
        files |= {f"{source.name}[{place}]" if place else source.name: path for place, path in enumerate(local)}
    return files


def _unwritable(run: Path | None, root: str) -> list[UserError]:
    folder = run or Path(root).expanduser().resolve()
    while not folder.exists():
        folder = folder.parent
    if folder.is_dir() and os.access(folder, os.W_OK | os.X_OK):
        return []
    return [
        RunError(
            "the run folder cannot be made" if run is None else "the run folder cannot be written to",
            where="run.root" if run is None else str(folder),
            got=f"{folder} is {'not writable' if folder.is_dir() else 'a file'}",
            expected="a folder that can be written to",
            hint="run.root=SOMEWHERE_ELSE" if run is None else f"cp -r {folder} SOMEWHERE_ELSE, and resume that",
        )
    ]
