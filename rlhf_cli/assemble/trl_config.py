"""Build TRL's own config object from an experiment, which runs TRL's value checks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from rlhf_cli.assemble.policy_loading import model_init_kwargs
from rlhf_cli.assemble.ppo_parts import args_with_critic
from rlhf_cli.assemble.process_group import open_store, start_process_group
from rlhf_cli.assemble.rollout_args import rollout_args
from rlhf_cli.assemble.stack_building import truncation_policy
from rlhf_cli.assemble.strategy_args import strategy_args
from rlhf_cli.assemble.trainer_class import config_class_of
from rlhf_cli.config import trl_args
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.errors import ConfigError
from rlhf_cli.runs.run_folder import RunFolder

if TYPE_CHECKING:
    from rlhf_cli.trainers.trl_protocol import TrlArguments


def trl_config(experiment: Experiment, folder: RunFolder) -> TrlArguments:
    """Return TRL's own config object. Raise ConfigError with TRL's message if it rejects a value."""
    trainer = experiment.trainer
    config_class = config_class_of(trainer)
    owned: dict[str, object] = {
        "output_dir": str(folder.path),
        "run_name": folder.label,
        "seed": experiment.seed,
        "report_to": "none",  # rlhf_cli/tracking mirrors the run folder; TRL's own would send all arguments
        "disable_tqdm": True,
        "model_init_kwargs": model_init_kwargs(experiment),
        "trust_remote_code": experiment.model.trust_remote_code,
        **_precision(experiment),
        **strategy_args(experiment.launch),
        **rollout_args(experiment),
    }
    if experiment.rewards:
        # The stack sets them before every batch; TRL requires one per reward.
        owned["reward_weights"] = [1.0] * (len(experiment.rewards) + truncation_policy(experiment).changes_total)
    if experiment.aggregate == "normalize_then_sum" and hasattr(config_class, "scale_rewards"):
        # The stack z-scores each reward within its group; TRL still has to divide by the batch's deviation.
        owned["scale_rewards"] = "batch"
    if experiment.reward_model is not None:
        owned["center_rewards_coefficient"] = experiment.reward_model.center or None
    open_store()
    if owned["use_cpu"]:
        start_process_group(trl_args.trainer(trainer.trl), trainer.args, deepspeed="deepspeed" in owned)
    try:
        if experiment.critic is not None:
            return args_with_critic(experiment, config_class, owned)
        return config_class(**owned, **trainer.args)
    except (ValueError, TypeError) as error:
        raise ConfigError(
            f"{trainer.row.config_class} refuses these arguments",
            where="trainer.args",
            got=str(error),
            hint="rlhf check ...",
        ) from error


def _precision(experiment: Experiment) -> dict[str, bool]:
    """Return the precision flags; `auto` is bf16 if the device supports it, else float32."""
    use_cpu = experiment.launch.device == "cpu" or not torch.cuda.is_available()
    if experiment.launch.device == "cuda" and use_cpu:
        raise ConfigError("there is no CUDA device here", where="launch.device", got="cuda", hint="launch=cpu")
    precision = experiment.launch.precision
    if precision == "auto":
        precision = "bf16" if not use_cpu and torch.cuda.is_bf16_supported() else "float32"
    return {"use_cpu": use_cpu, "bf16": precision == "bf16", "fp16": precision == "fp16"}
