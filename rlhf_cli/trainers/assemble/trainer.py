"""Build a ready trainer of an experiment.

The checks that fail fastest come first: TRL's own value checks, then the reward functions, data, and models.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from datasets import Dataset
from transformers import AutoTokenizer, TrainingArguments

from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.config.schema.reward_sections import RewardModel
from rlhf_cli.data.learnt_columns import only_learnt
from rlhf_cli.data.loading import load_split, quiet
from rlhf_cli.data.preferences import judge_pairs, leave_out
from rlhf_cli.data.rows import check_prompts, check_rows, describe_shared, hold_out, prompt_keys, shared_prompts
from rlhf_cli.data.source import DataSource
from rlhf_cli.errors import ModelError
from rlhf_cli.measure.scored_pairs import ScoredPair
from rlhf_cli.models.critic_model import restore_head_dtype
from rlhf_cli.models.loading import loading_unsharded
from rlhf_cli.models.reward_model_scorer import RewardModelScorer
from rlhf_cli.plan.data_sources import describe_eval_rows, eval_sources, preference_rules, training_sources
from rlhf_cli.rewards.stack import truncation
from rlhf_cli.rewards.stack.reward_stack import RewardStack
from rlhf_cli.runs.heartbeat import Heartbeat
from rlhf_cli.runs.phase_clock import PhaseClock
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.running_reward import RunningReward
from rlhf_cli.tables.trl_trainers import TEXT
from rlhf_cli.trainers.assemble.evaluation_in_training import TrainingEvaluation
from rlhf_cli.trainers.assemble.policy_loading import OnProgress, lora_config, policy_path, readable_rows
from rlhf_cli.trainers.assemble.ppo_setup import ppo_setup
from rlhf_cli.trainers.assemble.stack_building import aggregate_of, training_stack, truncation_policy
from rlhf_cli.trainers.assemble.trl_config import trainer_class_of, trl_config
from rlhf_cli.trainers.build_trainer import build_trainer
from rlhf_cli.trainers.extensions import ExtendedTrainer, Extensions, RewardSetup
from rlhf_cli.trainers.reward_samples import RewardSamples
from rlhf_cli.trainers.step_profile import StepProfile
from rlhf_cli.trainers.token_slots import TokenSlots


def ends_with_eos(pairs: Dataset) -> bool:
    """Return whether TRL's RewardTrainer will end the texts of these pairs with the end-of-sequence token.

    It does so for plain texts. A conversation ends as its template says, and token ids are used unchanged.
    """
    return "chosen" in pairs.column_names and isinstance(pairs[0]["chosen"], str)


LeftOut = dict[str, dict[str, int]]
"""Name of the data -> reason -> number of pairs that were left out."""


def training_rows(experiment: Experiment) -> tuple[Dataset, Dataset | None, LeftOut]:
    """Return training and held-out rows, and the pairs that were left out.

    Pairs are judged first, so that messages use the row numbers of the data. Raise DataError for invalid pairs, unless
    the configuration leaves them out.
    """
    data, row, left_out = experiment.data, experiment.trainer.row, LeftOut()
    rules = preference_rules(experiment) if "reward_model" in row.sections else None

    def load(sources: list[DataSource], name: str) -> Dataset:
        prompt = data.model_dump()["prompt"]
        dataset = load_split(sources, prompt=prompt, seed=experiment.seed, transcripts=data.transcripts)
        with quiet():
            return dataset if rules is None else judge_pairs(dataset, rules, name=name)

    def valid(dataset: Dataset, name: str) -> Dataset:
        with quiet():
            kept, counts = leave_out(dataset, name=name)
        if counts:
            left_out[name] = counts
        return kept

    train = load(training_sources(data), "data")
    held_out: Dataset | None = None
    if data.eval is not None and data.eval.fraction is not None:
        train, held_out = hold_out(train, data.eval.fraction, experiment.seed)
    elif data.eval is not None:
        held_out = load(eval_sources(data), "data.eval")
    if rules is not None:
        train = valid(train, "data")
        held_out = None if held_out is None else valid(held_out, "data.eval")
    for dataset, name in ((train, "data"), (held_out, "data.eval")):
        if dataset is not None and row.generates:
            check_prompts(dataset, name)
        elif dataset is not None:
            check_rows(dataset, [], name)
    if row.learns_from:
        text_field = str(experiment.trainer.args.get("dataset_text_field") or TEXT)
        train = only_learnt(train, row, text_field=text_field)
        if held_out is not None:
            held_out = only_learnt(held_out, row, text_field=text_field, name="data.eval")
    return train, held_out, left_out


OnPairs = Callable[[list[ScoredPair]], None]
"""Show the pairs that a reward model scored during training."""


def assemble(
    experiment: Experiment,
    folder: RunFolder,
    *,
    on_progress: OnProgress,
    on_pairs: OnPairs,
    heartbeat: Heartbeat,
    profiled: tuple[PhaseClock, TokenSlots] | None = None,
) -> ExtendedTrainer:
    """Return the trainer that runs `experiment` in `folder`, with data and models loaded; `heartbeat` gets its phases.

    It logs the measurements of `profiled`, its clock and token counter; None for no profile. Raise UserError for errors
    that only the libraries can detect: a value that TRL rejects, an unreachable hub.
    """
    row = experiment.trainer.row
    trainer_class = trainer_class_of(experiment.trainer)
    args = trl_config(experiment, folder)
    with loading_unsharded(args):
        stack = _stack(experiment, args, folder, heartbeat, profiled) if row.generates else None
    train_dataset, eval_dataset, left_out = training_rows(experiment)
    if stack is not None:
        _check_prompts(stack, train_dataset)
    # only the main process writes transformers' files
    with loading_unsharded(args), args.main_process_first(desc="the policy"):
        policy = policy_path(experiment, on_progress)
    train_dataset, eval_dataset = readable_rows(experiment, args, policy, train_dataset, eval_dataset)
    trained_on = _trained_on(train_dataset, eval_dataset, says=args.process_index == 0)
    with loading_unsharded(args):
        ppo = ppo_setup(experiment, policy)
    extensions = Extensions(
        table_log=folder.log,
        measured=row.measured,
        left_out=left_out,
        ends_with_eos=ends_with_eos(train_dataset) if "reward_model" in row.sections else None,
        may_lose_state=experiment.run.resume_weights_only,
        heartbeat=heartbeat,
        profile=None
        if profiled is None
        else StepProfile(*profiled, stack.names if stack is not None else None, has_critic=ppo is not None),
        rewards=_reward_setup(experiment, stack, folder, args, trained_on) if stack is not None else None,
        ppo=ppo,
    )
    given: dict[str, object] = {"args": args, "train_dataset": train_dataset, "eval_dataset": eval_dataset}
    given |= {"model": policy, **_reward_functions(experiment, stack), **_adapter_and_tokenizer(experiment, policy)}
    with quiet():  # TRL prepares the rows of trainers that learn from them
        trainer = build_trainer(trainer_class, extensions, **given)
    _check_learns(trainer)
    if experiment.model.quantize is not None:
        restore_head_dtype(trainer.model)
    if "reward_model" in row.sections:
        _show_pairs(trainer, experiment, folder, on_pairs)
    return trainer


def _stack(
    experiment: Experiment,
    args: TrainingArguments,
    folder: RunFolder,
    heartbeat: Heartbeat,
    profiled: tuple[PhaseClock, TokenSlots] | None,
) -> RewardStack:
    def hear(names: list[str]) -> None:
        heartbeat.beat()
        if profiled is not None:
            profiled[0].run_rewards(names)

    rank = args.process_index
    running = RunningReward(folder.path, rank, on_change=hear)
    return training_stack(experiment, device=args.device, run=folder, rank=rank, running=running)


def _trained_on(train: Dataset, held_out: Dataset | None, *, says: bool) -> frozenset[bytes]:
    """Return the keys of the held-out prompts that are also trained on, and log a warning about them."""
    trained_on = frozenset[bytes]() if held_out is None else shared_prompts(held_out, [train])
    if held_out is not None and trained_on and says:
        shared = sum(key in trained_on for key in prompt_keys(held_out))
        logging.getLogger("rlhf").warning("data.eval: %s", describe_shared(shared, len(held_out)))
    return trained_on


def _reward_setup(
    experiment: Experiment, stack: RewardStack, folder: RunFolder, args: TrainingArguments, trained_on: frozenset[bytes]
) -> RewardSetup:
    section, aggregate = experiment.trainer, aggregate_of(experiment)
    sum_up = TrainingEvaluation(
        folder,
        stack.components,
        describe_eval_rows(experiment.data),
        writes=args.process_index == 0,
        aggregate=aggregate,
        trained_on=trained_on,
    )
    return RewardSetup(
        stack=stack,
        aggregate=aggregate,
        is_dense=section.dense,
        no_signal=None if experiment.guards.no_signal == "off" else experiment.guards.no_signal,
        truncation=truncation_policy(experiment),
        loss_divisor=section.row.loss_divisor,
        passes=section.passes,
        generation="plain" if section.passes == "plain" else section.generation,
        sum_up=sum_up,
    )


def _reward_functions(experiment: Experiment, stack: RewardStack | None) -> dict[str, object]:
    """Return one callable per component for TRL, and one for the truncation component if there is one."""
    if stack is None:
        return {}
    adds = truncation_policy(experiment).changes_total
    return {"reward_funcs": [*stack.columns(), *([truncation.column] if adds else [])]}


def _adapter_and_tokenizer(experiment: Experiment, policy: str) -> dict[str, object]:
    model, given = experiment.model, dict[str, object]()
    if model.tokenizer is not None:
        given["processing_class"] = AutoTokenizer.from_pretrained(
            model.tokenizer, padding_side="left", trust_remote_code=model.trust_remote_code
        )
    if model.lora is not None:
        given["peft_config"] = lora_config(experiment, policy)
    return given


def _show_pairs(trainer: ExtendedTrainer, experiment: Experiment, folder: RunFolder, on_pairs: OnPairs) -> None:
    if trainer.is_world_process_zero():
        for name, counts in trainer.extensions.left_out.items():
            reasons = ", ".join(f"{number} {why.replace('_', ' ')}" for why, number in counts.items())
            logging.getLogger("rlhf").warning("pairs left out of %s: %s", name, reasons)
    num_samples = (experiment.reward_model or RewardModel()).show_samples
    if num_samples != 0:
        trainer.add_callback(RewardSamples(trainer, num_samples, file=folder.samples, on_pairs=on_pairs))


def _check_learns(trainer: ExtendedTrainer) -> None:
    """Raise ModelError if no weight takes a gradient: the whole run would train nothing."""
    parameters = list(trainer.model.parameters())
    if not any(parameter.requires_grad for parameter in parameters):
        raise ModelError(
            "there is nothing to train",
            where="trainer.class, model",
            got=f"{type(trainer.model).__name__}: none of its {len(parameters)} tensors takes a gradient",
            expected="weights with requires_grad, or an adapter that was loaded with is_trainable=True",
            hint="model.lora.r=16",
        )


def _check_prompts(stack: RewardStack, dataset: Dataset) -> None:
    """Check before the policy is loaded that reward models have a chat template for these prompts."""
    for component in stack.components:
        if isinstance(component.score, RewardModelScorer):
            component.score.check_prompt(dataset[0]["prompt"])
