"""Check the keys of PPO against each other, and refuse GRPO's arguments that have no meaning in PPO."""

from __future__ import annotations

from collections.abc import Iterator

from rlhf_cli.config import trl_args
from rlhf_cli.config.origins import Origins
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.config.schema.trainer_sections import Critic, Kl
from rlhf_cli.errors import ConfigError, Prose, UserError
from rlhf_cli.tables.trl_trainers import POLICY_LOSSES, TRAINERS

_ARGS = "trainer.args."


def ppo_problems(experiment: Experiment, origins: Origins) -> Iterator[UserError]:
    """Yield every problem with a critic, or with a section that needs a critic if the trainer has none."""
    trainer, where = experiment.trainer, origins.where
    sections = (("critic", experiment.critic, "critic.init=policy"), ("kl", experiment.kl, "kl.where=none"))
    if trainer.baseline != "critic":
        has_beta = "beta" in trl_args.trainer(trainer.trl).fields
        for name, section, _ in sections:
            if section is not None:
                expected = f"{_ARGS}beta, TRL's own" if name == "kl" and has_beta else None
                what = f"trainer={trainer.name} has no " + ("critic" if name == "critic" else "`kl` section")
                yield ConfigError(what, where=where(name), expected=expected, hint=f"trainer=ppo, or ~{name}")
        return
    for name, section, instead in sections:
        if section is None:
            what = f"trainer={trainer.name} needs a section `{name}`"
            yield ConfigError(what, where=where(name), got="null", hint=f"trainer=ppo, or {instead}")
    if trainer.row.can_have_critic:
        yield from _loss_problems(experiment, origins)
    else:
        able = [row.name for row in TRAINERS.values() if row.can_have_critic]
        yield ConfigError(
            f"there is no PPO on {trainer.trl}",
            where=where("trainer.baseline"),
            got=f"trainer.baseline=critic with trainer.trl={trainer.trl}",
            expected=f"trainer.trl={' or '.join(able)}, whose rollouts and clipped loss PPO uses",
            hint=f"trainer.trl={able[0]}, or trainer.baseline=group",
        )
    yield from _group_problems(experiment, origins)
    if experiment.launch.precision == "fp16":
        yield ConfigError(
            "PPO does not run in fp16",
            where=where("launch.precision"),
            got="one gradient scaler cannot serve the two optimizers, the policy's and the critic's",
            hint="launch.precision=bf16",
        )
    if experiment.kl is not None:
        yield from _kl_problems(experiment.kl, experiment, origins)
    if experiment.critic is not None and experiment.critic.share == "lora":
        yield from _shared_problems(experiment.critic, experiment, origins)


def _loss_problems(experiment: Experiment, origins: Origins) -> Iterator[UserError]:
    """Yield a problem for every GRPO argument that does not fit a clipped loss with per-token advantages."""
    args = experiment.trainer.args
    loss = args.get("loss_type")
    if loss in POLICY_LOSSES and not POLICY_LOSSES[loss].is_clipped_ppo:
        yield ConfigError(
            f"loss_type={loss} is not PPO's clipped loss",
            where=origins.where(f"{_ARGS}loss_type"),
            expected="one of " + ", ".join(row.name for row in POLICY_LOSSES.values() if row.is_clipped_ppo),
            hint=f"'~{_ARGS}loss_type'",
        )
    if args.get("importance_sampling_level") == "sequence":
        key = f"{_ARGS}importance_sampling_level"
        got = "sequence: one ratio for all tokens, although each has its own advantage"
        yield ConfigError("PPO weighs tokens, not sequences", where=origins.where(key), got=got, hint=f"'~{key}'")
    if args.get("off_policy_mask_threshold") is not None:
        key = f"{_ARGS}off_policy_mask_threshold"
        what = "PPO and an off-policy mask do not go together: the mask judges whole sequences"
        yield ConfigError(what, where=origins.where(key), hint=f"'~{key}'")


def _group_problems(experiment: Experiment, origins: Origins) -> Iterator[UserError]:
    """Yield a problem for every setting relative to the other completions of a prompt: PPO needs no group."""
    args = experiment.trainer.args
    if "scale_rewards" in args:
        yield ConfigError(
            "scale_rewards means nothing to PPO",
            where=origins.where(f"{_ARGS}scale_rewards"),
            got="it divides by the standard deviation of a group, and PPO has a critic instead of groups",
            expected=f"{_ARGS}whiten_advantages",
            hint=f"'~{_ARGS}scale_rewards'",
        )
    if experiment.aggregate == "normalize_then_sum":
        yield ConfigError(
            "normalize_then_sum means nothing to PPO",
            where=origins.where("aggregate"),
            got="it computes z-scores within a group, and PPO has a critic instead of groups",
            hint=Prose("aggregate=sum, and rewards.NAME.normalize=batch or running"),
        )
    num_generations = trl_args.setting(trl_args.trainer(experiment.trainer.trl), args, "num_generations")
    if not isinstance(num_generations, int) or num_generations >= 2:
        return
    for name in [name for name, reward in experiment.rewards.items() if reward.normalize == "group"]:
        key = f"rewards.{name}.normalize"
        yield ConfigError(
            "a group of one has no deviation to divide by",
            where=origins.where(key),
            got=f"normalize=group with {_ARGS}num_generations={num_generations}",
            expected="batch or running, or 2 or more generations a prompt",
            hint=f"{key}=running",
        )


def _kl_problems(kl: Kl, experiment: Experiment, origins: Origins) -> Iterator[UserError]:
    if kl.form.needs_reference and kl.coef == 0:
        yield ConfigError(
            "a KL penalty of 0 still costs a reference model",
            where=origins.where("kl.coef"),
            got=f"kl.coef=0 with kl.where={kl.where}",
            hint="kl.where=none",
        )
    if experiment.trainer.args.get("use_bias_correction_kl") and not kl.form.in_loss:
        key, what = f"{_ARGS}use_bias_correction_kl", "use_bias_correction_kl corrects a KL in the loss"
        hint = f"'~{key}', or kl.where=loss"
        yield ConfigError(what, where=origins.where(key), got=f"kl.where={kl.where}", hint=hint)


def _shared_problems(critic: Critic, experiment: Experiment, origins: Origins) -> Iterator[UserError]:
    """Yield a problem for every setting that is incompatible with a critic that is an adapter on the policy's body."""
    args, own_body = experiment.trainer.args, "critic.share=none"
    if experiment.model.lora is None:
        yield ConfigError(
            "a critic on the policy's body wants a policy that is an adapter, too",
            where=origins.where("critic.share"),
            got="critic.share=lora without model.lora",
            hint="+model.lora.r=16",
        )
    recomputed = "activations are recomputed under the other adapter, and gradients are silently wrong"
    key = f"{_ARGS}gradient_checkpointing"
    if args.get("gradient_checkpointing") is not False:  # TRL's default is on
        whose = "on" if "gradient_checkpointing" in args else "on: TRL's default"
        yield ConfigError(
            "a critic on the policy's body and gradient checkpointing do not go together",
            where=origins.where(key),
            got=f"{whose}; {recomputed}",
            hint=f"{key}=false, or {own_body}",
        )
    key = f"{_ARGS}activation_checkpointing"  # transformers reads this name first
    if args.get("activation_checkpointing"):
        yield ConfigError(
            "a critic on the policy's body and activation checkpointing do not go together",
            where=origins.where(key),
            got=f"on; {recomputed}",
            hint=f"'~{key}', or {own_body}",
        )
    key = f"{_ARGS}ddp_find_unused_parameters"
    if args.get("ddp_find_unused_parameters"):
        what = "ranks that look for unused parameters count those of a critic on the policy's body twice, and crash"
        yield ConfigError(what, where=origins.where(key), got=True, hint=f"'~{key}'")
    if critic.init != "policy":
        yield ConfigError(
            "a critic on the policy's body begins as the policy",
            where=origins.where("critic.init"),
            got=critic.init,
            hint=f"critic.init=policy, or {own_body}",
        )
