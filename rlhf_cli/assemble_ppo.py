"""From the PPO sections of an experiment (critic, kl, truncation) to what a trainer with a critic needs."""

from __future__ import annotations

import inspect
import os
from typing import Any

from rlhf_cli.config.schema import Experiment
from rlhf_cli.models.critic import build_critic
from rlhf_cli.trainers.critic import Critic, CriticSettings, SeparateCritic
from rlhf_cli.trainers.critic_lora import SharedLoraCritic
from rlhf_cli.trainers.kl_penalty import KlPenalty
from rlhf_cli.trainers.ppo_rollout import PpoSettings
from rlhf_cli.trainers.truncation import Truncation


def truncation_policy(experiment: Experiment) -> Truncation:
    """What a cut-off answer means in this experiment, whichever trainer."""
    section = experiment.truncation
    return Truncation(section.policy, section.penalty, section.replaces, section.cache)


def args_with_critic(experiment: Experiment, config_class: Any, owned: dict[str, Any]) -> Any:
    """TRL's config object for PPO. `owned` are the fields that other sections of the experiment decide.

    TRL's config refuses groups of less than two, which a baseline of the group's mean needs and PPO does not: it is
    given a size that divides the round, and told the true one afterwards.
    """
    given = dict(experiment.trainer.trl_args)
    asked = given.pop("num_generations", 1)
    in_eval = given.pop("num_generations_eval", asked)
    kl = experiment.kl
    if experiment.critic is not None and experiment.critic.share == "lora":
        # transformers has True for PEFT models; with two adapters in one backward DDP then counts some twice.
        given.setdefault("ddp_find_unused_parameters", False)
    beta = kl.coef if kl is not None and kl.where != "none" else 0.0  # TRL loads a reference where it is not 0
    allowed = asked if asked > 1 else _round_size(config_class, given)
    args = config_class(**owned, **given, beta=beta, num_generations=allowed, num_generations_eval=in_eval)
    args.num_generations = asked
    return args


def _round_size(config_class: Any, args: dict[str, Any]) -> int:
    """Completions a round, over all processes."""
    if args.get("generation_batch_size") is not None:
        return int(args["generation_batch_size"])
    name = "per_device_train_batch_size"
    per_device = args.get(name, inspect.signature(config_class).parameters[name].default)
    micro_batches = args.get("steps_per_generation") or args.get("gradient_accumulation_steps", 1)
    return int(per_device) * int(micro_batches) * int(os.environ.get("WORLD_SIZE", "1"))


def separate_critic(experiment: Experiment, policy: str) -> SeparateCritic | None:
    """The critic that is a model of its own; None where there is none, or it shares the policy's backbone."""
    critic, model = experiment.critic, experiment.model
    if critic is None or critic.share != "none":
        return None
    built = build_critic(
        critic.init,
        policy,
        # Small steps on bfloat16 weights round to none.
        dtype="float32" if model.dtype == "auto" else model.dtype,
        dropout=critic.dropout,
        revision=model.revision,
        trust_remote_code=model.trust_remote_code,
    )
    return SeparateCritic(built, _settings(experiment))


def set_up_ppo(trainer: Any, experiment: Experiment, critic: Critic | None) -> None:
    """Give a trainer that was made with a critic its settings, and the critic: `critic`, or one on its own backbone."""
    ppo, kl, section = experiment.trainer.ppo, experiment.kl, experiment.critic
    assert ppo is not None
    assert kl is not None
    assert section is not None
    target, horizon = (None, None) if kl.controller == "fixed" else (kl.controller.target, kl.controller.horizon)
    trainer.ppo = PpoSettings(ppo.gamma, ppo.gae_lambda, ppo.whiten_advantages)
    trainer.kl = KlPenalty(kl.where, kl.coef, target, horizon)
    trainer.critic = critic or SharedLoraCritic(trainer.model, _settings(experiment), dropout=section.dropout)


def _settings(experiment: Experiment) -> CriticSettings:
    critic = experiment.critic
    assert critic is not None
    return CriticSettings(
        learning_rate=critic.learning_rate,
        warmup_steps=critic.warmup_steps,
        value_clip=critic.value_clip,
        loss_coef=critic.loss_coef,
        max_grad_norm=critic.max_grad_norm,
    )
