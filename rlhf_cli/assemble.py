"""From an experiment to a ready trainer: the last place where a configuration object exists.

Signatures decide what a trainer is given: one that takes `reward_funcs` gets the reward stack, one that takes
`peft_config` the adapter. The order is that of the cheapest failure first: TRL's own value checks, then the reward
functions, then data, then models.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
import trl
from transformers import AutoTokenizer

from rlhf_cli.assemble_model import lora_config, model_init_kwargs
from rlhf_cli.assemble_ppo import args_with_critic, separate_critic, set_up_ppo, truncation_policy
from rlhf_cli.assemble_reward_model import PreferencePairs
from rlhf_cli.assemble_rewards import reward_stack
from rlhf_cli.config.schema import AGGREGATES, Experiment
from rlhf_cli.data.learnt import learns_from_rows, only_learnt
from rlhf_cli.data.load import load_split, quiet
from rlhf_cli.data.rows import check_rows, hold_out
from rlhf_cli.data.source import Source
from rlhf_cli.data.worlds import demonstrations
from rlhf_cli.errors import ConfigError
from rlhf_cli.evaluate.during import DuringTraining
from rlhf_cli.models.heads import restore_head_dtype
from rlhf_cli.models.merge import whole_model
from rlhf_cli.models.reward_model import RewardModelScorer
from rlhf_cli.models.tiny import tiny_model_path
from rlhf_cli.plan.sources import eval_rows_told, eval_sources, training_sources
from rlhf_cli.rewards.resolve import import_function
from rlhf_cli.rewards.stack import RewardStack
from rlhf_cli.runs.folder import RunFolder
from rlhf_cli.trainers import truncation
from rlhf_cli.trainers.compose import with_our_seams

_WARM_START_ROWS = 6000
OnProgress = Callable[[str, int, int], None]
"""Called with what is being done, the step and the number of steps."""


def assemble(experiment: Experiment, folder: RunFolder, *, track_mode: str, on_progress: OnProgress) -> Any:
    """The trainer that runs `experiment` in `folder`, its data and models loaded.

    Raises UserError for what only the real libraries can tell: a value TRL refuses, a hub that does not answer.
    """
    trl_trainer = getattr(trl, experiment.trainer.trl)
    parameters = inspect.signature(trl_trainer).parameters
    stack = None
    args = trl_args(experiment, folder, track_mode)
    given: dict[str, Any] = {"args": args}
    if "reward_funcs" in parameters:
        stack = reward_stack(experiment, device=args.device, error_log=folder.reward_errors)
        given["reward_funcs"] = stack.columns()
        if truncation_policy(experiment).changes_total:
            given["reward_funcs"].append(truncation.column)
    pairs = PreferencePairs(experiment) if experiment.trainer.trl == "RewardTrainer" else None
    given["train_dataset"], given["eval_dataset"] = _datasets(experiment, pairs, needs_prompt=stack is not None)
    if stack is not None:
        _check_prompts(stack, given["train_dataset"])
    with args.main_process_first(desc="the policy"):  # transformers writes files on the main process alone
        given["model"] = policy_path(experiment, on_progress)
    if experiment.model.tokenizer is not None:
        given["processing_class"] = AutoTokenizer.from_pretrained(experiment.model.tokenizer, padding_side="left")
    if experiment.model.lora is not None and "peft_config" in parameters:
        given["peft_config"] = lora_config(experiment, given["model"])
    critic = separate_critic(experiment, given["model"])
    with quiet():  # TRL prepares the rows of trainers that learn from them
        trainer = with_our_seams(trl_trainer, with_critic=experiment.critic is not None)(**given)
    if experiment.model.quantize is not None:
        restore_head_dtype(trainer.model)
    trainer.table_log = folder.log
    trainer.reward_stack = stack
    if pairs is not None:
        pairs.set_up(trainer, folder)
    if experiment.critic is not None:
        set_up_ppo(trainer, experiment, critic)
    if stack is not None:
        trainer.aggregate = _aggregate(experiment)
        trainer.is_dense = experiment.trainer.dense
        trainer.truncation = truncation_policy(experiment)
        tokenizer = trainer.processing_class
        stack.decode = functools.partial(tokenizer.decode, skip_special_tokens=True)
        is_main = args.process_index == 0
        trainer.sum_up = DuringTraining(folder, stack.components, eval_rows_told(experiment.data), writes=is_main)
    return trainer


def trl_args(experiment: Experiment, folder: RunFolder, track_mode: str) -> Any:
    """TRL's own config object, which makes TRL's own value checks. Raises ConfigError with what TRL says."""
    trainer = experiment.trainer
    config_class = getattr(trl, trainer.trl.removesuffix("Trainer") + "Config")
    owned: dict[str, Any] = {
        "output_dir": str(folder.path),
        "run_name": folder.label,
        "seed": experiment.seed,
        "report_to": "none" if track_mode == "none" else "wandb",
        "disable_tqdm": True,
        "model_init_kwargs": model_init_kwargs(experiment),
        "trust_remote_code": experiment.model.trust_remote_code,
        **_precision(experiment),
    }
    if experiment.rewards:
        # The stack sets them before every batch; TRL wants as many as there are rewards.
        owned["reward_weights"] = [1.0] * (len(experiment.rewards) + truncation_policy(experiment).changes_total)
    if experiment.aggregate == "normalize_then_sum" and "scale_rewards" in inspect.signature(config_class).parameters:
        # The stack z-scores each reward within its group; what is left is to divide by the batch's deviation.
        owned["scale_rewards"] = "batch"
    if experiment.reward_model is not None:
        owned["center_rewards_coefficient"] = experiment.reward_model.center or None
    try:
        if experiment.critic is not None:
            return args_with_critic(experiment, config_class, owned)
        return config_class(**owned, **trainer.args)
    except (ValueError, TypeError) as error:
        raise ConfigError(
            f"{config_class.__name__} refuses these arguments",
            where="trainer.args",
            got=str(error),
            hint="rlhf check ... shows the batch arithmetic",
        ) from error


def policy_path(experiment: Experiment, on_progress: OnProgress) -> str:
    """The path or hub id of the policy; an embedded one is built first, an adapter is put on its base."""
    model = experiment.model
    if model.build is None:
        assert model.path is not None
        return whole_model(model.path, dtype=model.dtype, trust_remote_code=model.trust_remote_code)
    build = model.build.model_dump()
    worlds = build["warm_start"]["worlds"] if build["warm_start"] else []

    def demonstrate() -> list[dict[str, str]]:
        key = "model.build.warm_start.worlds"
        return [row for world in worlds for row in demonstrations(world, _WARM_START_ROWS, seed=0, name=key)]

    return str(
        tiny_model_path(build, demonstrate, lambda step, steps: on_progress("warming up the tiny model", step, steps))
    )


def _precision(experiment: Experiment) -> dict[str, bool]:
    """bf16 where the device has it, float32 on a CPU: what `auto` means can only be said here."""
    use_cpu = experiment.launch.device == "cpu" or not torch.cuda.is_available()
    if experiment.launch.device == "cuda" and use_cpu:
        raise ConfigError("there is no CUDA device here", where="launch.device", got="cuda", hint="launch=cpu")
    precision = experiment.launch.precision
    if precision == "auto":
        precision = "bf16" if not use_cpu and torch.cuda.is_bf16_supported() else "float32"
    return {"use_cpu": use_cpu, "bf16": precision == "bf16", "fp16": precision == "fp16"}


def _check_prompts(stack: RewardStack, dataset: Any) -> None:
    """Let reward models say before the policy is loaded that they have no chat template for these prompts."""
    for component in stack.components:
        if isinstance(component.score, RewardModelScorer):
            component.score.check_prompt(dataset[0]["prompt"])


def _aggregate(experiment: Experiment) -> Any:
    name = experiment.aggregate
    return name if name in AGGREGATES else import_function(name, where="aggregate")


def _datasets(experiment: Experiment, pairs: PreferencePairs | None, *, needs_prompt: bool) -> tuple[Any, Any]:
    """Training and held-out rows. Pairs are judged while rows have the numbers they have in the data."""
    data = experiment.data

    def load(sources: list[Source], name: str) -> Any:
        prompt = data.model_dump()["prompt"]
        dataset = load_split(sources, prompt=prompt, seed=experiment.seed, transcripts=data.transcripts)
        return dataset if pairs is None else pairs.judge(dataset, name)

    train, held_out = load(training_sources(data), "data"), None
    if data.eval is not None and data.eval.fraction is not None:
        train, held_out = hold_out(train, data.eval.fraction, experiment.seed)
    elif data.eval is not None:
        held_out = load(eval_sources(data), "data.eval")
    if pairs is not None:
        train = pairs.leave_out(train, "data")
        held_out = held_out and pairs.leave_out(held_out, "data.eval")
    for dataset, name in ((train, "data"), (held_out, "data.eval")):
        if dataset is not None:
            check_rows(dataset, ["prompt"] if needs_prompt else [], name)
    if learns_from_rows(experiment.trainer.trl):
        text_field = experiment.trainer.args.get("dataset_text_field", "text")
        train = only_learnt(train, experiment.trainer.trl, text_field=text_field)
        if held_out is not None:
            held_out = only_learnt(held_out, experiment.trainer.trl, text_field=text_field, name="data.eval")
    return train, held_out
