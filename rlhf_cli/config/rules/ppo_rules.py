"""Checks the keys of PPO against each other, and refuses GRPO's arguments that have no meaning in PPO."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rlhf_cli.config import trl_args
from rlhf_cli.config.origins import Origins
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.config.schema.trainer_sections import Critic, Kl
from rlhf_cli.errors import ConfigError, Prose, UserError
from rlhf_cli.tables.trl_trainers import POLICY_LOSSES, TRAINERS


def ppo_problems(experiment: Experiment, origins: Origins) -> Iterator[UserError]:
    """Yield every problem with a critic, or with a section that needs a critic if the trainer has none."""
    trainer = experiment.trainer
    if trainer.baseline != "critic":
        yield from _without_critic(experiment, origins)
        return
    for name, section, hint in (
        ("critic", experiment.critic, "trainer=ppo, or critic.init=policy"),
        ("kl", experiment.kl, "trainer=ppo, or kl.where=none"),
    ):
        if section is None:
            yield ConfigError(
                f"trainer={trainer.name} needs a section `{name}`",
                where=origins.where(name),
                got="null",
                hint=hint,
            )
    if not trainer.row.can_have_critic:
        able = [row.name for row in TRAINERS.values() if row.can_have_critic]
        yield ConfigError(
            f"there is no PPO on {trainer.trl}",
            where=origins.where("trainer.baseline"),
            got=f"trainer.baseline=critic with trainer.trl={trainer.trl}",
            expected=f"trainer.trl={' or '.join(able)}, whose rollouts and clipped loss PPO stands on",
            hint=f"trainer.trl={able[0]}, or trainer.baseline=group",
        )
    else:
        yield from _loss_problems(experiment, origins)
    yield from _group_problems(experiment, origins)
    if experiment.launch.precision == "fp16":
        yield ConfigError(
            "PPO does not run in fp16",
            where=origins.where("launch.precision"),
            got="one gradient scaler cannot serve the two optimizers, the policy's and the critic's",
            expected="bf16 or float32",
            hint="launch.precision=bf16",
        )
    if experiment.kl is not None:
        yield from _kl_problems(experiment.kl, trainer.args, origins)
    if experiment.critic is not None and experiment.critic.share == "lora":
        yield from _shared_problems(experiment.critic, experiment, origins)


def _without_critic(experiment: Experiment, origins: Origins) -> Iterator[UserError]:
    name = experiment.trainer.name
    if experiment.critic is not None:
        yield ConfigError(
            f"trainer={name} has no critic",
            where=origins.where("critic"),
            got="a section `critic`",
            hint="trainer=ppo, or ~critic",
        )
    if experiment.kl is not None:
        has_beta = "beta" in trl_args.trainer(experiment.trainer.trl).fields
        yield ConfigError(
            f"trainer={name} has no `kl` section",
            where=origins.where("kl"),
            got="a section `kl`",
            expected="trainer.args.beta, TRL's own" if has_beta else None,
            hint="trainer=ppo, or ~kl",
        )


def _loss_problems(experiment: Experiment, origins: Origins) -> Iterator[UserError]:
    """Yield a problem for every GRPO argument that does not fit a clipped loss with per-token advantages."""
    args = experiment.trainer.args
    loss = args.get("loss_type")
    if loss in POLICY_LOSSES and not POLICY_LOSSES[loss].is_clipped_ppo:
        yield ConfigError(
            f"loss_type={loss} is not PPO's clipped loss",
            where=origins.where("trainer.args.loss_type"),
            got=loss,
            expected="one of " + ", ".join(row.name for row in POLICY_LOSSES.values() if row.is_clipped_ppo),
            hint="'~trainer.args.loss_type'",
        )
    if args.get("importance_sampling_level") == "sequence":
        yield ConfigError(
            "PPO weighs tokens, not sequences",
            where=origins.where("trainer.args.importance_sampling_level"),
            got="sequence: one ratio for all tokens, which have an advantage each",
            expected="token",
            hint="'~trainer.args.importance_sampling_level'",
        )
    if args.get("off_policy_mask_threshold") is not None:
        yield ConfigError(
            "PPO and an off-policy mask do not go together",
            where=origins.where("trainer.args.off_policy_mask_threshold"),
            got="the mask judges whole sequences by their advantage",
            hint="'~trainer.args.off_policy_mask_threshold'",
        )


def _group_problems(experiment: Experiment, origins: Origins) -> Iterator[UserError]:
    """Yield a problem for every setting relative to the other completions of a prompt: PPO needs no group."""
    args = experiment.trainer.args
    if "scale_rewards" in args:
        yield ConfigError(
            "scale_rewards means nothing to PPO",
            where=origins.where("trainer.args.scale_rewards"),
            got="it divides by the deviation of a group, and PPO has a critic in a group's place",
            expected="trainer.args.whiten_advantages",
            hint="'~trainer.args.scale_rewards'",
        )
    if experiment.aggregate == "normalize_then_sum":
        yield ConfigError(
            "normalize_then_sum means nothing to PPO",
            where=origins.where("aggregate"),
            got="z-scores within a group, and PPO has a critic in a group's place",
            expected="aggregate=sum",
            hint=Prose("aggregate=sum, and rewards.NAME.normalize=batch or running"),
        )
    num_generations = trl_args.setting(trl_args.trainer(experiment.trainer.trl), args, "num_generations")
    if not isinstance(num_generations, int) or num_generations >= 2:
        return
    for name, reward in experiment.rewards.items():
        if reward.normalize == "group":
            key = f"rewards.{name}.normalize"
            yield ConfigError(
                "a group of one has no deviation to divide by",
                where=origins.where(key),
                got=f"normalize=group with trainer.args.num_generations={num_generations}",
                expected="batch or running, or 2 generations a prompt and more",
                hint=f"{key}=running",
            )


def _kl_problems(kl: Kl, args: Mapping[str, object], origins: Origins) -> Iterator[UserError]:
    if kl.form.needs_reference and kl.coef == 0:
        yield ConfigError(
            "a KL penalty of 0 still costs a reference model",
            where=origins.where("kl.coef"),
            got=f"kl.coef=0 with kl.where={kl.where}",
            expected="above 0, or no penalty",
            hint="kl.where=none",
        )
    if args.get("use_bias_correction_kl") and not kl.form.in_loss:
        yield ConfigError(
            "use_bias_correction_kl corrects a KL in the loss",
            where=origins.where("trainer.args.use_bias_correction_kl"),
            got=f"kl.where={kl.where}",
            hint="'~trainer.args.use_bias_correction_kl', or kl.where=loss",
        )


def _shared_problems(critic: Critic, experiment: Experiment, origins: Origins) -> Iterator[UserError]:
    """Yield a problem for every setting that is incompatible with a critic that is an adapter on the policy's body."""
    if experiment.model.lora is None:
        yield ConfigError(
            "a critic on the policy's body wants a policy that is an adapter, too",
            where=origins.where("critic.share"),
            got="critic.share=lora without model.lora",
            expected="a frozen body with two adapters",
            hint="+model.lora.r=16",
        )
    key = "trainer.args.gradient_checkpointing"
    if experiment.trainer.args.get("gradient_checkpointing") is not False:  # TRL's default is on
        yield ConfigError(
            "a critic on the policy's body and gradient checkpointing do not go together",
            where=origins.where(key),
            got="on"
            + (": TRL's default" if "gradient_checkpointing" not in experiment.trainer.args else "")
            + "; activations are recomputed under the other adapter, and gradients are wrong without a word",
            expected="false",
            hint=f"{key}=false, or critic.share=none",
        )
    if experiment.trainer.args.get("activation_checkpointing"):  # transformers reads this name first
        yield ConfigError(
            "a critic on the policy's body and activation checkpointing do not go together",
            where=origins.where("trainer.args.activation_checkpointing"),
            got="on; activations are recomputed under the other adapter, and gradients are wrong without a word",
            expected="false",
            hint="'~trainer.args.activation_checkpointing', or critic.share=none",
        )
    if experiment.trainer.args.get("ddp_find_unused_parameters"):
        yield ConfigError(
            "ranks that look for unused parameters count those of a critic on the policy's body twice, and crash",
            where=origins.where("trainer.args.ddp_find_unused_parameters"),
            got=True,
            expected="false, which it is unless you say so",
            hint="'~trainer.args.ddp_find_unused_parameters'",
        )
    if critic.init != "policy":
        yield ConfigError(
            "a critic on the policy's body begins as the policy",
            where=origins.where("critic.init"),
            got=critic.init,
            expected="critic.init=policy",
            hint="critic.init=policy, or critic.share=none",
        )
