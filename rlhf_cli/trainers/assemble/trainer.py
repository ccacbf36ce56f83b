"""Build a ready trainer of an experiment.

The checks that fail fastest come first: TRL's own value checks, then the reward functions, data, and models.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from datasets import Dataset, DatasetDict
from transformers import TrainingArguments

from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.config.schema.reward_sections import RewardModel
from rlhf_cli.data.images import as_images
from rlhf_cli.data.learnt_columns import check_columns, only_learnt
from rlhf_cli.data.loading import load_split, quiet
from rlhf_cli.data.preferences import judge_pairs, leave_out
from rlhf_cli.data.rows import describe_shared, hold_out, prompt_key, prompt_keys, shared_prompts
from rlhf_cli.data.source import DataSource
from rlhf_cli.errors import ModelError
from rlhf_cli.models.model_folders import loaders_of
from rlhf_cli.models.tokenizer_files import padding_beside
from rlhf_cli.numerics.score_scaling import RunningDeviation
from rlhf_cli.plan import sources_and_components as planned
from rlhf_cli.plan.stack_building import aggregate_of, interactions_of, training_stack
from rlhf_cli.rewards.stack import reward_matrix
from rlhf_cli.rewards.stack.aggregating import Aggregate
from rlhf_cli.rewards.stack.component import Component
from rlhf_cli.rewards.stack.reward_stack import RewardStack
from rlhf_cli.runs.heartbeat import Heartbeat, PhaseClock
from rlhf_cli.runs.run_folder import RunFolder, in_step, in_training, write_json, write_rows
from rlhf_cli.tables.trl_trainers import TEXT, data_key
from rlhf_cli.trainers.assemble import policy_loading
from rlhf_cli.trainers.assemble.algorithm import algorithm_of
from rlhf_cli.trainers.assemble.trl_config import callbacks_of, trainer_class_of, trl_config
from rlhf_cli.trainers.checkpoint_mixin import CheckpointMixin
from rlhf_cli.trainers.evaluation_mixin import EvaluationMixin, RewardSamples
from rlhf_cli.trainers.extensions import ExtendedTrainer, Extensions, KeepGroups, RewardSetup
from rlhf_cli.trainers.guard_mixin import GuardMixin
from rlhf_cli.trainers.logging_mixin import LoggingMixin
from rlhf_cli.trainers.pass_mixin import PassMixin
from rlhf_cli.trainers.reward_mixin import RewardMixin
from rlhf_cli.trainers.rollout_mixin import RolloutMixin
from rlhf_cli.trainers.step_profile import StepProfile, TokenSlots

if TYPE_CHECKING:
    from rlhf_cli.evaluation.evaluation_results import PartAnswers, PolicyEvaluation
    from rlhf_cli.evaluation.scored_pairs import ScoredPair
    from rlhf_cli.trainers.ppo.critic import PpoSetup


_TEXTS = ("prompt", "chosen", "rejected", "completion", "messages", "conversations", TEXT)


def are_conversations(rows: Dataset) -> bool | None:
    """Return whether the rows go through the chat template; None if they are token ids."""
    first = [rows[0][name] for name in _TEXTS if name in rows.column_names]
    if not first:
        return None
    return any(isinstance(text, list) and bool(text) and isinstance(text[0], dict) for text in first)


def training_rows(experiment: Experiment) -> tuple[Dataset, dict[str, Dataset], dict[str, dict[str, int]]]:
    """Return the training rows, the evaluation sets, and per table how many pairs are left out, and why.

    A single evaluation set has the name ''. Pairs are judged first, so that messages use the data's row numbers.
    Raise DataError for invalid pairs, unless the configuration leaves them out.
    """
    data, row, left_out = experiment.data, experiment.trainer.row, dict[str, dict[str, int]]()
    rules = planned.preference_rules(experiment) if "reward_model" in row.sections else None

    def load(sources: list[DataSource], name: str) -> Dataset:
        dataset = load_split(sources, prompt=data.model_dump()["prompt"], seed=experiment.seed)
        if rules is None:
            return dataset
        with quiet():
            return judge_pairs(dataset, rules, name=name)

    rows = {"data": load(planned.training_sources(experiment), "data")}
    sources = {source.name: source for source in planned.eval_sources(experiment)}
    for key in map(data_key, data.evals):
        if key in sources:
            rows[key] = load([sources[key]], key)
        elif data.fraction is not None:
            rows["data"], rows[key] = hold_out(rows["data"], data.fraction, experiment.seed)
    text_field = str(experiment.trainer.args.get("dataset_text_field") or TEXT)
    for name, dataset in rows.items():
        if rules is not None:
            with quiet():
                dataset, counts = leave_out(dataset, name=name)
            left_out |= {name: counts} if counts else {}
        if row.learns_from:
            dataset = only_learnt(dataset, row, text_field=text_field, name=name)
        else:
            check_columns(dataset, row, name=name)
        rows[name] = dataset
    return rows["data"], {name: rows[data_key(name)] for name in data.evals}, left_out


OnPairs = Callable[["list[ScoredPair]"], None]
"""Show the pairs that a reward model scored during training."""


def assemble(
    experiment: Experiment,
    folder: RunFolder,
    *,
    on_progress: policy_loading.OnProgress,
    on_pairs: OnPairs,
    heartbeat: Heartbeat,
    profiled: tuple[PhaseClock, TokenSlots] | None = None,
) -> ExtendedTrainer:
    """Return the trainer that runs `experiment` in `folder`, with data and models loaded; `heartbeat` gets its phases.

    It logs what `profiled` measures, and shows scored pairs by `on_pairs`. Raise UserError for errors that only the
    libraries can detect: a value that TRL rejects, an unreachable hub.
    """
    row, args = experiment.trainer.row, trl_config(experiment, folder)
    # Not cuDNN's attention, the default on an H100: in torch 2.11 to 2.13 the gradient of a query that attends to
    # nothing (padding on the left) is NaN for masked rows of n tokens with n % 128 == 64 (pytorch issue 196678).
    torch.backends.cuda.enable_cudnn_sdp(False)
    stack = _load_rewards(experiment, folder, args, on_progress, heartbeat) if row.generates else None
    on_progress("reading the data")
    train_dataset, eval_sets, left_out = training_rows(experiment)
    for component in stack.components if stack is not None else ():
        if hasattr(component.score, "check_prompt"):  # fails without a chat template, before the policy is loaded
            component.score.check_prompt(train_dataset[0]["prompt"])
    # only the main process writes transformers' files
    with policy_loading.loading_unsharded(args), args.main_process_first(desc="the policy"):
        policy = policy_loading.policy_path(experiment, on_progress)
    train_dataset, eval_sets = policy_loading.readable_rows(experiment, args, policy, train_dataset, eval_sets)
    trained_on = _shared_with_training(train_dataset, eval_sets, warn=args.process_index == 0)
    rewards = None if stack is None else _reward_setup(experiment, stack, folder, args, trained_on)
    ppo = None if rewards is None else _load_critic(experiment, policy, rewards, args, on_progress)
    if "reward_model" in row.sections and args.pad_token is None:
        args.pad_token = _padding_of_reward_model(experiment, policy)
    conversations, names = are_conversations(train_dataset), None if stack is None else stack.names
    extensions = Extensions(
        table_log=folder.log,
        measured=row.measured,
        left_out=left_out,
        # TRL's RewardTrainer ends plain texts with the token; a conversation ends as its template says.
        ends_with_eos=conversations is False if "reward_model" in row.sections else None,
        conversations=conversations,
        may_lose_state=experiment.run.resume_weights_only,
        heartbeat=heartbeat,
        profile=None if profiled is None else StepProfile(*profiled, names, has_critic=ppo is not None),
        rewards=rewards,
        ppo=ppo,
    )
    given = {"args": args, "model": policy, **_trl_arguments(experiment, policy, rewards)}
    given |= _datasets(train_dataset, eval_sets, with_images="images" in row.along)
    on_progress(f"loading {'the rows and ' if row.learns_from else ''}{policy}")
    with quiet():  # TRL prepares the rows of trainers that learn from them
        trainer = extended_class(trainer_class_of(experiment.trainer), extensions)(**given)
    _check_learns(trainer)
    if experiment.model.quantize is not None:
        from rlhf_cli.models.scalar_heads import restore_head_dtype

        restore_head_dtype(trainer.model)
    if "reward_model" in row.sections:
        _show_pairs(trainer, experiment, folder, on_pairs)
    return trainer


def _datasets(train: Dataset, eval_sets: dict[str, Dataset], *, with_images: bool) -> dict[str, object]:
    """Return the trainer's arguments with the rows; a run with one held-out set has it under an empty name."""
    if with_images:
        train = as_images(train, opens=True)
        eval_sets = {name: as_images(rows, opens=True) for name, rows in eval_sets.items()}
    one_or_more = eval_sets.get("", DatasetDict(eval_sets) if eval_sets else None)  # ORPO and CPO call its `map`
    return {"train_dataset": train, "eval_dataset": one_or_more}


def _load_rewards(
    experiment: Experiment,
    folder: RunFolder,
    args: TrainingArguments,
    on_progress: policy_loading.OnProgress,
    heartbeat: Heartbeat,
) -> RewardStack:
    """Return the rewards, with the models of those that have one."""
    models = [reward.model for reward in experiment.rewards.values() if reward.model is not None]
    what = f"reward model{'s' * (len(models) > 1)} {', '.join(models)}" if models else "rewards"
    on_progress(f"loading the {what}")
    with policy_loading.loading_unsharded(args):
        return training_stack(experiment, device=args.device, run=folder, rank=args.process_index, heartbeat=heartbeat)


def _load_critic(
    experiment: Experiment,
    policy: str,
    rewards: RewardSetup,
    args: TrainingArguments,
    on_progress: policy_loading.OnProgress,
) -> PpoSetup | None:
    """Return what PPO needs beside the policy; None if another algorithm trains."""
    if experiment.trainer.ppo is None:
        return None
    from rlhf_cli.algorithms.ppo import Ppo
    from rlhf_cli.trainers.assemble.ppo_setup import ppo_setup

    assert isinstance(rewards.algorithm, Ppo)
    on_progress("loading the critic")
    with policy_loading.loading_unsharded(args):
        return ppo_setup(experiment, policy, rewards.algorithm)


def _shared_with_training(train_dataset: Dataset, eval_sets: dict[str, Dataset], *, warn: bool) -> frozenset[bytes]:
    """Return the keys of the evaluation prompts that are also trained on; with `warn`, log how many rows have them."""
    trained_on = frozenset[bytes]()
    for name, rows in eval_sets.items():
        trained_on |= (shared := shared_prompts(rows, [train_dataset]))
        if shared and warn:
            count = sum(key in shared for key in prompt_keys(rows))
            logging.getLogger("rlhf").warning("%s: %s", data_key(name), describe_shared(count, len(rows)))
    return trained_on


def extended_class(trl_trainer: type, extensions: Extensions) -> type[ExtendedTrainer]:
    """Return a subclass of TRL's trainer with mixins, in an order that docs/development/architecture.md explains."""
    mixins: tuple[type, ...] = (LoggingMixin, CheckpointMixin, GuardMixin)
    if extensions.rewards is not None:
        mixins = (LoggingMixin, CheckpointMixin, RolloutMixin, GuardMixin, EvaluationMixin, PassMixin, RewardMixin)
        if extensions.rewards.keep_groups is not None:
            from rlhf_cli.trainers.rollout_mixin import SamplingMixin

            mixins = (*mixins[:-1], SamplingMixin, RewardMixin)
    if extensions.ppo is not None:
        from rlhf_cli.trainers.ppo.ppo_mixin import PpoMixin

        mixins = (*mixins[:3], PpoMixin, *mixins[3:])
    own = {"__module__": __name__, "__doc__": trl_trainer.__doc__, "extensions": extensions}
    # TRL writes the class's name into profiling metrics and model cards.
    return type(trl_trainer.__name__, (*mixins, trl_trainer), own)


def _reward_setup(
    experiment: Experiment, stack: RewardStack, folder: RunFolder, args: TrainingArguments, trained_on: frozenset[bytes]
) -> RewardSetup:
    section, aggregate, keep = experiment.trainer, aggregate_of(experiment), experiment.sampling.keep_groups
    sum_up = TrainingEvaluation(
        folder,
        stack.components,
        {name: planned.describe_eval_rows(planned.only_set(experiment, name).data) for name in experiment.data.evals},
        writes=args.process_index == 0,
        aggregate=aggregate,
        trained_on=trained_on,
    )
    return RewardSetup(
        stack=stack,
        algorithm=algorithm_of(experiment),
        aggregate=aggregate,
        is_dense=section.dense,
        no_signal=None if experiment.guards.no_signal == "off" else experiment.guards.no_signal,
        truncation=experiment.truncation.rule,
        loss_divisor=section.row.loss_divisor,
        passes=section.passes,
        generation="plain" if section.passes == "plain" else section.generation,
        sum_up=sum_up,
        keep_groups=None if keep is None else KeepGroups(keep.by, keep.tries),
        interactions=interactions_of(experiment),
    )


def _trl_arguments(experiment: Experiment, policy: str, rewards: RewardSetup | None) -> dict[str, object]:
    """Return TRL's arguments that depend on the configuration: rewards, tools, tokenizer, adapter."""
    model, given = experiment.model, dict[str, object]()
    if rewards is not None:  # one callable per component, and one for the truncation component if there is one
        adds = rewards.truncation.changes_total
        given["reward_funcs"] = [*rewards.stack.columns(), *([reward_matrix.column] if adds else [])]
        given |= {} if rewards.interactions is None else rewards.interactions.arguments()
    if any(own is not None for own in (model.tokenizer, model.chat_template, model.response_template)):
        load = loaders_of(policy, revision=model.revision, trust_remote_code=model.trust_remote_code)[2]
        given["processing_class"] = policy_loading.tokenizer_of(experiment, policy, load)
    if experiment.trainer.callbacks:
        given["callbacks"] = callbacks_of(experiment.trainer)
    if experiment.teacher is not None:
        given |= policy_loading.teacher_arguments(experiment, policy)
    if model.lora is not None:
        given["peft_config"] = policy_loading.lora_config(experiment, policy)
    return given


def _padding_of_reward_model(experiment: Experiment, policy: str) -> str | None:
    """Return another token to pad with if the tokenizer pads with its end-of-sequence token; None to keep its own.

    transformers reads a score at the last token that is no padding, and the model would never see how a text ends.
    """
    tokenizer = policy_loading.tokenizer_of(experiment, policy)
    if tokenizer.pad_token not in (None, tokenizer.eos_token):
        return None
    special = [token.content for _, token in sorted(tokenizer.added_tokens_decoder.items()) if token.special]
    return padding_beside(tokenizer.eos_token, special, tokenizer.chat_template)


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
        got = f"{type(trainer.model).__name__}: {len(parameters)} tensors, and no gradient reaches any"
        expected = "weights with requires_grad, or an adapter that was loaded with is_trainable=True"
        where, hint = "trainer.class, model", "model.lora.r=16"
        raise ModelError("there is nothing to train", where=where, got=got, expected=expected, hint=hint)


@dataclass
class TrainingEvaluation:
    """Summarise a policy's answers in a trainer's evaluation; every rank has one, and only the first `writes`."""

    folder: RunFolder
    components: Sequence[Component]
    data: Mapping[str, str]  # describes the rows of each set
    writes: bool
    aggregate: Aggregate = "sum"
    trained_on: frozenset[bytes] = frozenset()  # `prompt_key` of prompts also trained on
    _has_warned: bool = False

    def __call__(
        self,
        by_mode: dict[str, PartAnswers],
        weights: list[float],
        step: int,
        running: Mapping[str, RunningDeviation] | None = None,
        eval_set: str = "",
    ) -> dict[str, float | None]:
        """Return metric -> value: totals with their intervals, raw rewards, truncation, tokens, pass@k, maj@k.

        running: the training's divisors by reward, if it has scored rows already. Write `eval/training/step-N.json`,
        or `step-N-NAME.json` of a named set, and its completions.
        """
        from rlhf_cli.evaluation.evaluation_results import settled_answers, sum_up_answers

        parts, no_total = settled_answers(
            by_mode, self.components, weights, aggregate=self.aggregate, running=running or {}
        )
        if no_total is not None and self.writes and not self._has_warned:
            logging.getLogger("rlhf").warning("evaluations have no total: %s", no_total)
            self._has_warned = True
        names = [component.name for component in self.components]
        evaluation = sum_up_answers(parts, names, no_total=no_total, trained_on=self.trained_on)
        if self.writes:
            self._write(evaluation, parts, step, eval_set)
        return metrics_of(evaluation)

    def _write(self, measured: PolicyEvaluation, parts: dict[str, PartAnswers], step: int, eval_set: str) -> None:
        from rlhf_cli.evaluation.evaluation_results import Evaluation, Heading, completions_of, evaluation_json

        folder = in_training(self.folder)
        folder.mkdir(parents=True, exist_ok=True)
        name = in_step(step, eval_set)
        first = next(iter(parts.values()))
        shared = sum(prompt_key(answer.row) in self.trained_on for answer in first.answers[:: first.each])
        heading = Heading(
            name=name,
            step=step,
            model=self.folder.label,
            data=self.data[eval_set],
            trained_on=shared,
            time=time.time(),
            warnings=[describe_shared(shared, measured.rows)] if shared else [],
        )
        write_json(folder / f"{name}.json", evaluation_json(Evaluation(heading, measured)))
        write_rows(folder / f"{name}.completions.jsonl", completions_of(parts))


def metrics_of(evaluation: PolicyEvaluation) -> dict[str, float | None]:
    """Return the means of docs/reference/metrics.md, with the bounds of the totals; None if no row was scored."""
    metrics: dict[str, float | None] = {}
    for name, part in evaluation.parts.items():
        total, figures = part.total, (("truncated", part.truncated), ("tokens", part.tokens))
        metrics |= {f"{name}/total": total.mean, f"{name}/total/low": total.low, f"{name}/total/high": total.high}
        metrics |= {f"{name}/rewards/{reward}": scores.raw.mean for reward, scores in part.rewards.items()}
        metrics |= {f"{name}/{figure}": found.mean for figure, found in figures}
        for which, some in (evaluation.by_prompts or {}).items():
            metrics[f"{name}/total/{which}"] = some.parts[name].total.mean
    for reward, attempts in evaluation.attempts.items():
        for kind, by_count in attempts.by_name().items():
            metrics |= {f"{kind}@{count}/{reward}": share.mean for count, share in by_count.items()}
    return metrics
